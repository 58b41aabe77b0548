/* What is exported: which instruction sets this CPU has, and every call sent on to the chosen set's kernels. */
#include <stddef.h>

#include "context.h"

int64_t hr_api_version(void) { return HR_API_VERSION; }

int64_t hr_best_isa(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni") &&
        __builtin_cpu_supports("avx512bf16"))
        return HR_AVX512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return HR_AVX2;
#endif
    return HR_NONE;
}

int64_t hr_panel_width(const hr_context *context) { return hr_kernels_of(context)->panel_width; }

int hr_pack(hr_context *context, const uint32_t *rows, int64_t n, int64_t steps, uint32_t *packed) {
    return hr_kernels_of(context)->pack(context, rows, n, steps, packed);
}

int hr_linear(hr_context *context, const hr_product *product, const void *x, int64_t x_kind, int64_t num_rows,
              float *out) {
    return hr_kernels_of(context)->linear(context, product, x, x_kind, num_rows, out);
}

int hr_rows(hr_context *context, const hr_product *product, const int64_t *row_ids, int64_t num_rows, float *out) {
    return hr_kernels_of(context)->rows(context, product, row_ids, num_rows, out);
}

int hr_store(hr_context *context, const hr_attention *shape, void *cache, const hr_span *spans, int64_t num_spans,
             const float *keys, const float *values) {
    return hr_kernels_of(context)->store(context, shape, cache, spans, num_spans, keys, values);
}

int hr_attend(hr_context *context, const hr_attention *shape, void *cache, int64_t window, const hr_span *spans,
              int64_t num_spans, const float *queries, float *out) {
    return hr_kernels_of(context)->attend(context, shape, cache, window, spans, num_spans, queries, out);
}

int hr_forward(hr_context *context, const hr_model *model, const hr_step *step) {
    return hr_kernels_of(context)->forward(context, model, step);
}
