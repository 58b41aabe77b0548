/* Matrix products: a few input rows at a time against one panel of packed weights, sums in registers. */

INLINE int64_t bytes_per_value(int64_t kind) { return kind == HR_F32 ? 4 : kind == HR_BF16 ? 2 : 1; }

INLINE int64_t packed_steps(const hr_product *product) { return product->k * bytes_per_value(product->kind) / 4; }

/* Where only weights are int8, an input row is two rows of int8: the upper and the lower digits of 16-bit numbers. */
INLINE int rows_per_input(const hr_product *product) { return product->kind == HR_INT8_WEIGHTS ? 2 : 1; }

INLINE int64_t input_steps(const hr_product *product) { return packed_steps(product) * rows_per_input(product); }

INLINE int64_t whole_vectors(int64_t n) { return (n + LANES - 1) / LANES * LANES; }

INLINE int64_t num_panels(int64_t n) { return (n + PANEL - 1) / PANEL; }

INLINE int64_t width_of_panel(int64_t n, int64_t panel) {
    int64_t rest = whole_vectors(n) - panel * PANEL;
    return rest < PANEL ? rest : PANEL;
}

/* sums[r][v] += rows r of x against the vectors at w[v], whose next step is `stride` further on. */
INLINE void add_products(const int kind, const int num_rows, const int num_vectors, const uint32_t *x, int64_t x_stride,
                         const uint32_t *const *w, int64_t stride, int64_t steps, const int prefetches,
                         int64_t ahead, vfloat sums[MAX_ROWS][PANEL_VECTORS]) {
    vfloat held[MAX_ROWS][PANEL_VECTORS];
#pragma GCC unroll 8
    for (int r = 0; r < num_rows; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < num_vectors; ++v) held[r][v] = sums[r][v];
    for (int64_t step = 0; step < steps; ++step) {
        vbits weights[PANEL_VECTORS];
#pragma GCC unroll 8
        for (int v = 0; v < num_vectors; ++v) {
            const uint32_t *at = w[v] + step * stride;
            weights[v] = load_bits(at);
            if (prefetches) __builtin_prefetch(at + ahead, 0, 2);
        }
#pragma GCC unroll 8
        for (int r = 0; r < num_rows; ++r) {
            vbits input = splat_bits(x[r * x_stride + step]);
#pragma GCC unroll 8
            for (int v = 0; v < num_vectors; ++v) held[r][v] = dot(kind, held[r][v], input, weights[v]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < num_rows; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < num_vectors; ++v) sums[r][v] = held[r][v];
}

#if MAX_ROWS == 6
#define FOR_NUM_ROWS(num_rows, CALL) \
    switch (num_rows) { \
        case 1: CALL(1); break; \
        case 2: CALL(2); break; \
        case 3: CALL(3); break; \
        case 4: CALL(4); break; \
        case 5: CALL(5); break; \
        default: CALL(6); break; \
    }
#else
#define FOR_NUM_ROWS(num_rows, CALL) \
    switch (num_rows) { \
        case 1: CALL(1); break; \
        case 2: CALL(2); break; \
        case 3: CALL(3); break; \
        default: CALL(4); break; \
    }
#endif

/* Of a vector's weights, far enough for memory to answer in time. */
#define PREFETCH_WORDS (24 * PANEL)

#define DEFINE_ADD_PRODUCTS(name, kind) \
    static void name(int num_rows, int num_vectors, const uint32_t *x, const uint32_t *w, int64_t steps, \
                     int64_t ahead, vfloat sums[MAX_ROWS][PANEL_VECTORS]) { \
        const uint32_t *vectors[PANEL_VECTORS]; \
        for (int v = 0; v < PANEL_VECTORS; ++v) vectors[v] = w + v * LANES; \
        if (num_vectors == PANEL_VECTORS) { \
            FOR_NUM_ROWS(num_rows, WHOLE_##kind) \
            return; \
        } \
        for (int v = 0; v < num_vectors; ++v) { \
            vfloat part[MAX_ROWS][PANEL_VECTORS]; \
            for (int r = 0; r < num_rows; ++r) part[r][0] = sums[r][v]; \
            FOR_NUM_ROWS(num_rows, SINGLE_##kind) \
            for (int r = 0; r < num_rows; ++r) sums[r][v] = part[r][0]; \
        } \
    }
#define WHOLE(kind, n) add_products(kind, n, PANEL_VECTORS, x, steps, vectors, PANEL, steps, 1, ahead, sums)
#define SINGLE(kind, n) add_products(kind, n, 1, x, steps, vectors + v, num_vectors * LANES, steps, 0, 0, part)
#define WHOLE_HR_F32(n) WHOLE(HR_F32, n)
#define WHOLE_HR_BF16(n) WHOLE(HR_BF16, n)
#define WHOLE_HR_INT8(n) WHOLE(HR_INT8, n)
#define SINGLE_HR_F32(n) SINGLE(HR_F32, n)
#define SINGLE_HR_BF16(n) SINGLE(HR_BF16, n)
#define SINGLE_HR_INT8(n) SINGLE(HR_INT8, n)
DEFINE_ADD_PRODUCTS(add_products_f32, HR_F32)
DEFINE_ADD_PRODUCTS(add_products_bf16, HR_BF16)
DEFINE_ADD_PRODUCTS(add_products_int8, HR_INT8)

typedef struct {
    const hr_product *product;
    const uint32_t *input; /* [rows][steps] */
    const float *input_scales;
    int64_t num_rows;
    float *out; /* [rows][n] */
    int adds;   /* to what `out` holds, instead of replacing it */
} product_job;

/* Inputs are shifted by 128 to be unsigned: what that adds is taken off. */
INLINE vfloat without_shift(const hr_product *product, int64_t column, vfloat sum) {
    return to_float((vint)sum - (vint)load_bits((const uint32_t *)product->sums + column));
}

INLINE void finish_vector(const product_job *job, int64_t row, int64_t column, vfloat sum) {
    const hr_product *product = job->product;
    if (job->input_scales != NULL) sum *= load(product->scales + column) * splat(job->input_scales[row]);
    float *out = job->out + row * product->n + column;
    if (column + LANES <= product->n) {
        if (product->bias != NULL) sum += load(product->bias + column);
        if (job->adds) sum += load(out);
        store(out, sum);
        return;
    }
    float lanes[LANES];
    store(lanes, sum);
    for (int64_t i = 0; i < product->n - column; ++i) {
        float value = lanes[i] + (product->bias != NULL ? product->bias[column + i] : 0.0f);
        out[i] = job->adds ? out[i] + value : value;
    }
}

static void add_panel(const hr_product *product, int num_rows, int num_vectors, const uint32_t *x, const uint32_t *w,
                      int64_t ahead, vfloat sums[MAX_ROWS][PANEL_VECTORS]) {
    const int64_t steps = packed_steps(product);
    if (product->kind == HR_F32)
        add_products_f32(num_rows, num_vectors, x, w, steps, ahead, sums);
    else if (product->kind == HR_BF16)
        add_products_bf16(num_rows, num_vectors, x, w, steps, ahead, sums);
    else
        add_products_int8(num_rows, num_vectors, x, w, steps, ahead, sums);
}

/* As many rows as registers hold sums for. `ahead`: where to prefetch weights for later, in words from those in use. */
static void product_of_rows(const product_job *job, int64_t panel, int64_t row, int num_rows, int64_t ahead) {
    const hr_product *product = job->product;
    const int num_vectors = (int)(width_of_panel(product->n, panel) / LANES);
    const uint32_t *x = job->input + row * input_steps(product);
    vfloat sums[MAX_ROWS][PANEL_VECTORS];
    for (int r = 0; r < MAX_ROWS; ++r)
        for (int v = 0; v < PANEL_VECTORS; ++v) sums[r][v] = zeros();
    add_panel(product, num_rows * rows_per_input(product), num_vectors, x,
              product->packed + panel * PANEL * packed_steps(product), ahead, sums);
    for (int r = 0; r < num_rows; ++r)
        for (int v = 0; v < num_vectors; ++v) {
            const int64_t column = panel * PANEL + v * LANES;
            vfloat sum = sums[r][v];
            if (product->kind == HR_INT8) sum = without_shift(product, column, sum);
            if (product->kind == HR_INT8_WEIGHTS)
                sum = fused(without_shift(product, column, sums[2 * r][v]), splat(256.0f),
                            without_shift(product, column, sums[2 * r + 1][v]));
            finish_vector(job, row + r, column, sum);
        }
}

static void run_product(void *argument, int64_t first, int64_t last, void *scratch) {
    (void)scratch;
    const product_job *job = argument;
    const int64_t most_rows = MAX_ROWS / rows_per_input(job->product);
    const int64_t num_tiles = (job->num_rows + most_rows - 1) / most_rows;
    for (int64_t panel = first; panel < last; ++panel)
        for (int64_t tile = 0; tile < num_tiles; ++tile) {
            int64_t row = job->num_rows * tile / num_tiles, end = job->num_rows * (tile + 1) / num_tiles;
            int64_t ahead = tile == 0 ? PREFETCH_WORDS : tile == 1 ? PANEL * packed_steps(job->product) : 0;
            product_of_rows(job, panel, row, (int)(end - row), ahead);
        }
}

static void multiply(hr_context *context, const hr_product *product, const void *input, const float *input_scales,
                     int64_t num_rows, float *out, int adds) {
    const int is_scaled = product->kind == HR_INT8 || product->kind == HR_INT8_WEIGHTS;
    product_job job = {product, input, is_scaled ? input_scales : NULL, num_rows, out, adds};
    int64_t panels = num_panels(product->n), grain = panels >= 32 ? 4 : 1;
    hr_parallel(context, panels, grain, product->k * PANEL * num_rows, run_product, &job);
}

INLINE float largest_size(const float *row, int64_t k) {
    float most = 0.0f;
    for (int64_t i = 0; i < k; ++i) {
        float size = row[i] < 0 ? -row[i] : row[i];
        most = size > most ? size : most;
    }
    return most;
}

INLINE int32_t nearest(float x) {
    float shifted = x + 12582912.0f; /* 1.5 x 2^23: rounds to nearest, ties to even */
    int32_t bits;
    memcpy(&bits, &shifted, 4);
    return bits - 0x4b400000;
}

/* A row of floats in the form that products of a kind take. `scale` is the row's, of int8 kinds. */
INLINE void write_input(int64_t kind, const float *row, int64_t k, void *out, float *scale) {
    if (kind == HR_F32) {
        memcpy(out, row, (size_t)k * sizeof(float));
    } else if (kind == HR_BF16) {
        uint16_t *values = out;
        for (int64_t i = 0; i < k; ++i) values[i] = float_to_bf16(row[i]);
    } else {
        const float most = largest_size(row, k), limit = kind == HR_INT8 ? 127.0f : 127.0f * 256.0f;
        const float factor = most > 0.0f ? limit / most : 0.0f;
        uint8_t *upper = out, *lower = upper + k;
        *scale = most / limit;
        if (kind == HR_INT8) {
            for (int64_t i = 0; i < k; ++i) upper[i] = (uint8_t)(nearest(row[i] * factor) + 128);
        } else {
            for (int64_t i = 0; i < k; ++i) {
                int32_t value = nearest(row[i] * factor), digit = (value + 128) >> 8;
                upper[i] = (uint8_t)(digit + 128);
                lower[i] = (uint8_t)(value - digit * 256 + 128);
            }
        }
    }
}

/* Weights [n][steps] as panels [steps][width]. */
typedef struct {
    const uint32_t *rows;
    int64_t n, steps;
    uint32_t *packed;
} pack_job;

static void run_pack(void *argument, int64_t first, int64_t last, void *scratch) {
    (void)scratch;
    const pack_job *job = argument;
    for (int64_t panel = first; panel < last; ++panel) {
        int64_t width = width_of_panel(job->n, panel);
        uint32_t *out = job->packed + panel * PANEL * job->steps;
        for (int64_t step0 = 0; step0 < job->steps; step0 += 16)
            for (int64_t lane = 0; lane < width; ++lane) {
                int64_t row = panel * PANEL + lane;
                for (int64_t step = step0; step < step0 + 16 && step < job->steps; ++step)
                    out[step * width + lane] = row < job->n ? job->rows[row * job->steps + step] : 0;
            }
    }
}

static int pack(hr_context *context, const uint32_t *rows, int64_t n, int64_t steps, uint32_t *packed) {
    pack_job job = {rows, n, steps, packed};
    hr_parallel(context, num_panels(n), 1, PANEL * steps, run_pack, &job);
    return 0;
}

/* One row of the weights, as it was before packing. */
static void unpack_row(const hr_product *product, int64_t row, float *out) {
    int64_t panel = row / PANEL, width = width_of_panel(product->n, panel), steps = packed_steps(product);
    const uint32_t *packed = product->packed + panel * PANEL * steps + row % PANEL;
    for (int64_t step = 0; step < steps; ++step) {
        uint32_t bits = packed[step * width];
        if (product->kind == HR_F32) {
            memcpy(out + step, &bits, 4);
        } else if (product->kind == HR_BF16) {
            out[2 * step] = bf16_to_float((uint16_t)bits);
            out[2 * step + 1] = bf16_to_float((uint16_t)(bits >> 16));
        } else {
            for (int i = 0; i < 4; ++i) out[4 * step + i] = (float)(int8_t)(bits >> (8 * i)) * product->scales[row];
        }
    }
}

static int rows(hr_context *context, const hr_product *product, const int64_t *row_ids, int64_t num_rows, float *out) {
    (void)context;
    for (int64_t i = 0; i < num_rows; ++i) unpack_row(product, row_ids[i], out + i * product->k);
    return 0;
}

/* Rows of `x`, which are float32 or bfloat16, in the form that the product takes. */
typedef struct {
    const hr_product *product;
    const void *x;
    int64_t x_kind;
    uint8_t *input;
    float *input_scales;
} input_job;

static void run_input(void *argument, int64_t first, int64_t last, void *scratch) {
    const input_job *job = argument;
    const int64_t k = job->product->k, row_bytes = input_steps(job->product) * 4;
    for (int64_t row = first; row < last; ++row) {
        const float *values = (const float *)job->x + row * k;
        if (job->x_kind == HR_BF16) {
            const uint16_t *halves = (const uint16_t *)job->x + row * k;
            float *widened = scratch;
            for (int64_t i = 0; i < k; ++i) widened[i] = bf16_to_float(halves[i]);
            values = widened;
        }
        write_input(job->product->kind, values, k, job->input + row * row_bytes, job->input_scales + row);
    }
}

static int linear(hr_context *context, const hr_product *product, const void *x, int64_t x_kind, int64_t num_rows,
                  float *out) {
    if (hr_reserve_scratch(context, (size_t)product->k * sizeof(float)) < 0) return -1;
    if (x_kind == product->kind) {
        multiply(context, product, x, NULL, num_rows, out, 0);
        return 0;
    }
    void *input = hr_buffer(context, HR_INPUT, (size_t)(num_rows * input_steps(product) * 4));
    float *scales = hr_buffer(context, HR_INPUT_SCALES, (size_t)num_rows * sizeof(float));
    if (input == NULL || scales == NULL) return -1;
    input_job job = {product, x, x_kind, input, scales};
    hr_parallel(context, num_rows, 16, product->k * 4, run_input, &job);
    multiply(context, product, input, scales, num_rows, out, 0);
    return 0;
}
