/* The kernels' data, as Python hands it over (headrace/engine/kernels/structures.py mirrors it field by field).
 *
 * A "step" is four bytes of a row along the inner dimension: one float32, two bfloat16 or four int8. All products
 * broadcast one step of an input row against one vector of lanes, each lane an output; so all types share one layout.
 */
#ifndef HEADRACE_KERNELS_H
#define HEADRACE_KERNELS_H

#include <stdint.h>

#define HR_API_VERSION 1

/* Instruction sets. */
#define HR_NONE 0
#define HR_AVX2 1
#define HR_AVX512 2

/* Kinds of numbers. */
#define HR_F32 0
#define HR_BF16 1
#define HR_INT8 2
#define HR_INT8_WEIGHTS 3

/* How a matrix product y = x W^T + b is stored: [panels][steps][panel width], rows of W padded to a whole vector. */
typedef struct {
    const uint32_t *packed;
    const float *bias;   /* [n], or NULL */
    const float *scales; /* [n padded], of int8 rows */
    const int32_t *sums; /* [n padded], 128 x the sum of an int8 row */
    int64_t n;           /* rows of W: outputs */
    int64_t k;           /* columns of W: inputs */
    int64_t kind;
} hr_product;

typedef struct {
    hr_product qkv, output, gate_up, down;
    const float *attention_norm, *mlp_norm;
    const float *q_norm, *k_norm; /* [head_dim], or NULL */
    void *cache;                  /* [blocks][kv heads][keys, values] */
    int64_t window;               /* tokens that a token sees, itself among them; 0: all before it */
} hr_layer;

/* The shape of the paged cache and of the heads that use it. */
typedef struct {
    int64_t kind; /* HR_F32 or HR_BF16 */
    int64_t block_size, num_heads, num_kv_heads, head_dim;
    float scale;
} hr_attention;

typedef struct {
    hr_attention attention;
    int64_t num_layers, hidden_size, intermediate_size;
    float eps;
    const hr_layer *layers;
    const float *final_norm;
    const float *cos, *sin; /* [positions][head_dim / 2] */
    const void *embedding;  /* row-major [vocabulary][hidden]; NULL: the rows of `head` */
    int64_t embedding_kind; /* HR_F32 or HR_BF16 */
    hr_product head;
} hr_model;

/* Neighbouring tokens of one sequence. */
typedef struct {
    int64_t row, num_rows, position; /* first row of the step, rows, position of the first */
    const int64_t *blocks;
} hr_span;

typedef struct {
    int64_t num_tokens, num_spans, num_outputs;
    const int64_t *token_ids;
    const hr_span *spans;
    const int64_t *output_rows; /* NULL: all, in order */
    void *hidden;               /* [outputs][hidden], of kind `hidden_kind` */
    int64_t hidden_kind;
} hr_step;

typedef struct hr_context hr_context;

int64_t hr_api_version(void);
int64_t hr_best_isa(void);
hr_context *hr_open(int64_t isa, int64_t num_threads);
void hr_close(hr_context *context);
int64_t hr_panel_width(const hr_context *context);

/* 0, or -1 where memory is short. */
int hr_pack(hr_context *context, const uint32_t *rows, int64_t n, int64_t steps, uint32_t *packed);
int hr_linear(hr_context *context, const hr_product *product, const void *x, int64_t x_kind, int64_t num_rows,
              float *out);
int hr_rows(hr_context *context, const hr_product *product, const int64_t *row_ids, int64_t num_rows, float *out);
int hr_store(hr_context *context, const hr_attention *shape, void *cache, const hr_span *spans, int64_t num_spans,
             const float *keys, const float *values);
int hr_attend(hr_context *context, const hr_attention *shape, void *cache, int64_t window, const hr_span *spans,
              int64_t num_spans, const float *queries, float *out);
int hr_forward(hr_context *context, const hr_model *model, const hr_step *step);

#endif
