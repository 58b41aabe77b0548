/* Attention over the paged cache, a task at a time: some query tokens of one sequence, for one key-value head.
 *
 * A block holds for each key-value head its keys, then its values, both in tiles of 16 tokens: keys as
 * [steps of a head][16 tokens], values as [steps of 16 tokens][head size], so that both products of attention are
 * those of `add_products`. The softmax runs over chunks of the context, rescaling what was summed before; chunks end
 * at the same tokens whatever else is computed, so that a token's result has the same bits alone and in any batch.
 */

#define TILE 16
#define TILE_VECTORS (TILE / LANES)
#define CHUNK_TOKENS 512
#define CHUNK_TILES (CHUNK_TOKENS / TILE)
/* Queries of a task: enough that the context is seldom read again, few enough for the second-level cache. */
#define TASK_QUERIES 48

typedef struct {
    const hr_span *span;
    int64_t first, num_rows; /* of the span */
} attention_task;

typedef struct {
    const hr_attention *shape;
    const void *cache;
    int64_t window;
    const attention_task *tasks;
    const uint32_t *queries; /* [rows][heads][head steps] */
    void *out;               /* [rows][heads][head size] */
    int64_t out_kind;        /* HR_F32 or HR_BF16 */
    int64_t first_row;       /* of the step, where queries and out begin */
} attention_job;

INLINE int64_t group_size(const hr_attention *shape) { return shape->num_heads / shape->num_kv_heads; }

INLINE int64_t rows_per_task(const hr_attention *shape) {
    int64_t rows = TASK_QUERIES / group_size(shape);
    return rows > 0 ? rows : 1;
}

INLINE int64_t queries_per_task(const hr_attention *shape) { return rows_per_task(shape) * group_size(shape); }

INLINE int64_t head_steps(const hr_attention *shape) { return shape->head_dim * bytes_per_value(shape->kind) / 4; }

/* Steps of the keys, and of the values, of one head in one block. */
INLINE int64_t block_steps(const hr_attention *shape) { return shape->block_size * head_steps(shape); }

INLINE uint32_t *block_keys(const hr_attention *shape, const void *cache, int64_t block, int64_t kv_head) {
    return (uint32_t *)cache + (block * shape->num_kv_heads + kv_head) * 2 * block_steps(shape);
}

/* The tile of keys that holds a token of the sequence; its values lie one block's keys further on. */
INLINE uint32_t *tile_of(const hr_attention *shape, const void *cache, const hr_span *span, int64_t kv_head,
                         int64_t token) {
    int64_t block = span->blocks[token / shape->block_size], tile = token % shape->block_size / TILE;
    return block_keys(shape, cache, block, kv_head) + tile * TILE * head_steps(shape);
}

INLINE void store_token(const hr_attention *shape, void *cache, const hr_span *span, int64_t token, int64_t kv_head,
                        const float *key, const float *value) {
    uint32_t *keys = tile_of(shape, cache, span, kv_head, token), *values = keys + block_steps(shape);
    int64_t slot = token % TILE, head_dim = shape->head_dim;
    if (shape->kind == HR_F32) {
        for (int64_t d = 0; d < head_dim; ++d) ((float *)keys)[d * TILE + slot] = key[d];
        memcpy((float *)values + slot * head_dim, value, (size_t)head_dim * sizeof(float));
        return;
    }
    uint16_t *half_keys = (uint16_t *)keys, *half_values = (uint16_t *)values + slot / 2 * head_dim * 2 + slot % 2;
    for (int64_t d = 0; d < head_dim; ++d) {
        half_keys[(d / 2 * TILE + slot) * 2 + d % 2] = float_to_bf16(key[d]);
        half_values[d * 2] = float_to_bf16(value[d]);
    }
}

/* One thread's memory for a task. */
typedef struct {
    uint32_t *queries, *weights; /* weights in the cache's kind, of the chunk */
    float *scores, *sums, *most, *total;
    const uint32_t *tiles[CHUNK_TILES]; /* of keys */
    int64_t num_queries, first_token, num_tokens, num_tiles;
} attention_scratch;

INLINE size_t attention_scratch_size(const hr_attention *shape) {
    size_t per_query = (size_t)head_steps(shape) * 4 + CHUNK_TOKENS * 8 + (size_t)shape->head_dim * 4 + 8;
    return sizeof(attention_scratch) + 64 * 8 + (size_t)queries_per_task(shape) * per_query;
}

static attention_scratch *lay_out_scratch(const hr_attention *shape, void *memory) {
    attention_scratch *scratch = memory;
    size_t count = (size_t)queries_per_task(shape);
    char *at = (char *)memory + ((sizeof *scratch + 63) & ~(size_t)63);
    scratch->scores = (float *)at, at += count * CHUNK_TOKENS * 4;
    scratch->weights = (uint32_t *)at, at += count * CHUNK_TOKENS * 4;
    scratch->queries = (uint32_t *)at, at += count * (size_t)head_steps(shape) * 4;
    scratch->sums = (float *)at, at += count * (size_t)shape->head_dim * 4;
    scratch->most = (float *)at, at += count * 4;
    scratch->total = (float *)at;
    return scratch;
}

INLINE void score_rows(const int kind, const int num_rows, const int num_vectors, const hr_attention *shape,
                       attention_scratch *scratch, int64_t row, int64_t vector) {
    const uint32_t *w[PANEL_VECTORS];
    vfloat sums[MAX_ROWS][PANEL_VECTORS];
    for (int v = 0; v < num_vectors; ++v)
        w[v] = scratch->tiles[(vector + v) / TILE_VECTORS] + (vector + v) % TILE_VECTORS * LANES;
    for (int r = 0; r < num_rows; ++r)
        for (int v = 0; v < num_vectors; ++v) sums[r][v] = zeros();
    const int64_t steps = head_steps(shape);
    add_products(kind, num_rows, num_vectors, scratch->queries + row * steps, steps, w, TILE, steps, 0, 0, sums);
    for (int r = 0; r < num_rows; ++r)
        for (int v = 0; v < num_vectors; ++v)
            store(scratch->scores + (row + r) * CHUNK_TOKENS + (vector + v) * LANES,
                  sums[r][v] * splat(shape->scale));
}

#define DEFINE_SCORES(name, kind) \
    static void name(const hr_attention *shape, attention_scratch *scratch) { \
        const int64_t num_vectors = scratch->num_tiles * TILE_VECTORS; \
        for (int64_t row = 0; row < scratch->num_queries; row += MAX_ROWS) { \
            int num_rows = (int)(scratch->num_queries - row < MAX_ROWS ? scratch->num_queries - row : MAX_ROWS); \
            int64_t vector = 0; \
            for (; vector + PANEL_VECTORS <= num_vectors; vector += PANEL_VECTORS) \
                FOR_NUM_ROWS(num_rows, SCORES_OF_MANY_##kind) \
            for (; vector < num_vectors; ++vector) FOR_NUM_ROWS(num_rows, SCORES_OF_ONE_##kind) \
        } \
    }
#define SCORES_OF_MANY_HR_F32(n) score_rows(HR_F32, n, PANEL_VECTORS, shape, scratch, row, vector)
#define SCORES_OF_MANY_HR_BF16(n) score_rows(HR_BF16, n, PANEL_VECTORS, shape, scratch, row, vector)
#define SCORES_OF_ONE_HR_F32(n) score_rows(HR_F32, n, 1, shape, scratch, row, vector)
#define SCORES_OF_ONE_HR_BF16(n) score_rows(HR_BF16, n, 1, shape, scratch, row, vector)
DEFINE_SCORES(score_chunk_f32, HR_F32)
DEFINE_SCORES(score_chunk_bf16, HR_BF16)

/* Turn a query's scores into weights; those outside [begin, end) of the chunk become 0. */
static void weigh_chunk(const hr_attention *shape, attention_scratch *scratch, int64_t query, int64_t begin,
                        int64_t end) {
    float *scores = scratch->scores + query * CHUNK_TOKENS;
    const int64_t num_slots = scratch->num_tiles * TILE;
    for (int64_t i = 0; i < begin; ++i) scores[i] = -1e30f;
    for (int64_t i = end; i < num_slots; ++i) scores[i] = -1e30f;
    vfloat most = splat(scratch->most[query]);
    for (int64_t i = 0; i < num_slots; i += LANES) most = largest(most, load(scores + i));
    float new_most = max_lanes(most);
    vfloat sum = zeros();
    for (int64_t i = 0; i < num_slots; i += LANES) {
        vfloat weight = exponential(load(scores + i) - splat(new_most));
        store(scores + i, weight);
    }
    for (int64_t i = 0; i < begin; ++i) scores[i] = 0.0f;
    for (int64_t i = end; i < num_slots; ++i) scores[i] = 0.0f;
    for (int64_t i = 0; i < num_slots; i += LANES) sum += load(scores + i);
    write_input(shape->kind, scores, num_slots, scratch->weights + query * CHUNK_TOKENS, NULL);
    vfloat shrink = exponential(splat(scratch->most[query] - new_most));
    float factor = sum_lanes(shrink) / LANES;
    scratch->total[query] = scratch->total[query] * factor + sum_lanes(sum);
    scratch->most[query] = new_most;
    float *sums = scratch->sums + query * shape->head_dim;
    for (int64_t d = 0; d < shape->head_dim; ++d) sums[d] *= factor;
}

INLINE void add_values(const int kind, const int num_rows, const int num_vectors, const hr_attention *shape,
                       attention_scratch *scratch, int64_t row, int64_t vector) {
    const int64_t tile_steps = kind == HR_F32 ? TILE : TILE / 2, head_dim = shape->head_dim;
    vfloat sums[MAX_ROWS][PANEL_VECTORS];
    float *out = scratch->sums + row * head_dim + vector * LANES;
    for (int r = 0; r < num_rows; ++r)
        for (int v = 0; v < num_vectors; ++v) sums[r][v] = load(out + r * head_dim + v * LANES);
    for (int64_t tile = 0; tile < scratch->num_tiles; ++tile) {
        const uint32_t *w[PANEL_VECTORS], *values = scratch->tiles[tile] + block_steps(shape);
        for (int v = 0; v < num_vectors; ++v) w[v] = values + (vector + v) * LANES;
        add_products(kind, num_rows, num_vectors, scratch->weights + row * CHUNK_TOKENS + tile * tile_steps,
                     CHUNK_TOKENS, w, head_dim, tile_steps, 0, 0, sums);
    }
    for (int r = 0; r < num_rows; ++r)
        for (int v = 0; v < num_vectors; ++v) store(out + r * head_dim + v * LANES, sums[r][v]);
}

#define DEFINE_VALUES(name, kind) \
    static void name(const hr_attention *shape, attention_scratch *scratch) { \
        const int64_t num_vectors = shape->head_dim / LANES; \
        for (int64_t row = 0; row < scratch->num_queries; row += MAX_ROWS) { \
            int num_rows = (int)(scratch->num_queries - row < MAX_ROWS ? scratch->num_queries - row : MAX_ROWS); \
            int64_t vector = 0; \
            for (; vector + PANEL_VECTORS <= num_vectors; vector += PANEL_VECTORS) \
                FOR_NUM_ROWS(num_rows, VALUES_OF_MANY_##kind) \
            for (; vector < num_vectors; ++vector) FOR_NUM_ROWS(num_rows, VALUES_OF_ONE_##kind) \
        } \
    }
#define VALUES_OF_MANY_HR_F32(n) add_values(HR_F32, n, PANEL_VECTORS, shape, scratch, row, vector)
#define VALUES_OF_MANY_HR_BF16(n) add_values(HR_BF16, n, PANEL_VECTORS, shape, scratch, row, vector)
#define VALUES_OF_ONE_HR_F32(n) add_values(HR_F32, n, 1, shape, scratch, row, vector)
#define VALUES_OF_ONE_HR_BF16(n) add_values(HR_BF16, n, 1, shape, scratch, row, vector)
DEFINE_VALUES(add_values_f32, HR_F32)
DEFINE_VALUES(add_values_bf16, HR_BF16)

static void attend_chunk(const attention_job *job, const attention_task *task, int64_t kv_head,
                         attention_scratch *scratch) {
    const hr_attention *shape = job->shape;
    const int64_t first = scratch->first_token, group = group_size(shape);
    scratch->num_tiles = (scratch->num_tokens + TILE - 1) / TILE;
    for (int64_t tile = 0; tile < scratch->num_tiles; ++tile)
        scratch->tiles[tile] = tile_of(shape, job->cache, task->span, kv_head, first + tile * TILE);
    if (shape->kind == HR_F32)
        score_chunk_f32(shape, scratch);
    else
        score_chunk_bf16(shape, scratch);
    for (int64_t query = 0; query < scratch->num_queries; ++query) {
        int64_t position = task->span->position + task->first + query / group;
        int64_t end = position + 1 - first, begin = job->window > 0 ? end - job->window : 0;
        end = end < scratch->num_tokens ? (end > 0 ? end : 0) : scratch->num_tokens;
        begin = begin > 0 ? (begin < end ? begin : end) : 0;
        weigh_chunk(shape, scratch, query, begin, end);
    }
    if (shape->kind == HR_F32)
        add_values_f32(shape, scratch);
    else
        add_values_bf16(shape, scratch);
}

static void write_attended(const attention_job *job, const attention_task *task, int64_t kv_head,
                           const attention_scratch *scratch) {
    const hr_attention *shape = job->shape;
    const int64_t group = group_size(shape), head_dim = shape->head_dim;
    for (int64_t query = 0; query < scratch->num_queries; ++query) {
        int64_t row = task->span->row + task->first + query / group - job->first_row;
        int64_t head = kv_head * group + query % group, at = (row * shape->num_heads + head) * head_dim;
        float *sums = scratch->sums + query * head_dim, factor = 1.0f / scratch->total[query];
        for (int64_t d = 0; d < head_dim; ++d) sums[d] *= factor;
        write_input(job->out_kind, sums, head_dim, (char *)job->out + at * bytes_per_value(job->out_kind), NULL);
    }
}

static void attend_task(const attention_job *job, const attention_task *task, int64_t kv_head,
                        attention_scratch *scratch) {
    const hr_attention *shape = job->shape;
    const int64_t group = group_size(shape), steps = head_steps(shape);
    const int64_t position = task->span->position + task->first, end = position + task->num_rows;
    scratch->num_queries = task->num_rows * group;
    for (int64_t row = 0; row < task->num_rows; ++row) {
        int64_t from = task->span->row + task->first + row - job->first_row;
        memcpy(scratch->queries + row * group * steps,
               job->queries + (from * shape->num_heads + kv_head * group) * steps, (size_t)(group * steps) * 4);
    }
    for (int64_t query = 0; query < scratch->num_queries; ++query) {
        scratch->most[query] = -1e30f;
        scratch->total[query] = 0.0f;
    }
    memset(scratch->sums, 0, (size_t)(scratch->num_queries * shape->head_dim) * sizeof(float));
    int64_t begin = job->window > 0 && position + 1 > job->window ? position + 1 - job->window : 0;
    for (int64_t first = begin / TILE * TILE, next; first < end; first = next) {
        next = (first / CHUNK_TOKENS + 1) * CHUNK_TOKENS;
        scratch->first_token = first;
        scratch->num_tokens = (end < next ? end : next) - first;
        attend_chunk(job, task, kv_head, scratch);
    }
    write_attended(job, task, kv_head, scratch);
}

static void run_attention(void *argument, int64_t first, int64_t last, void *memory) {
    const attention_job *job = argument;
    attention_scratch *scratch = lay_out_scratch(job->shape, memory);
    for (int64_t item = first; item < last; ++item)
        attend_task(job, job->tasks + item / job->shape->num_kv_heads, item % job->shape->num_kv_heads, scratch);
}

/* The tasks of the spans' rows in [first_row, end_row): how many; what they cost together. */
static int64_t make_tasks(const hr_attention *shape, const hr_span *spans, int64_t num_spans, int64_t first_row,
                          int64_t end_row, attention_task *tasks, int64_t *cost) {
    int64_t count = 0;
    *cost = 0;
    for (int64_t i = 0; i < num_spans; ++i) {
        const hr_span *span = spans + i;
        int64_t first = span->row < first_row ? first_row - span->row : 0;
        int64_t end = span->row + span->num_rows > end_row ? end_row - span->row : span->num_rows;
        while (first < end) {
            int64_t rows = end - first < rows_per_task(shape) ? end - first : rows_per_task(shape);
            tasks[count++] = (attention_task){span, first, rows};
            *cost += (span->position + first + rows) * rows * shape->head_dim * 4;
            first += rows;
        }
    }
    return count;
}

static int store_spans(hr_context *context, const hr_attention *shape, void *cache, const hr_span *spans,
                       int64_t num_spans, const float *keys, const float *values) {
    (void)context;
    const int64_t row_size = shape->num_kv_heads * shape->head_dim;
    for (int64_t i = 0; i < num_spans; ++i)
        for (int64_t row = 0; row < spans[i].num_rows; ++row)
            for (int64_t head = 0; head < shape->num_kv_heads; ++head) {
                int64_t at = (spans[i].row + row) * row_size + head * shape->head_dim;
                store_token(shape, cache, spans + i, spans[i].position + row, head, keys + at, values + at);
            }
    return 0;
}

static int attend(hr_context *context, const hr_attention *shape, void *cache, int64_t window, const hr_span *spans,
                  int64_t num_spans, const float *queries, float *out) {
    int64_t num_rows = 0, cost;
    for (int64_t i = 0; i < num_spans; ++i) {
        int64_t end = spans[i].row + spans[i].num_rows;
        num_rows = end > num_rows ? end : num_rows;
    }
    const int64_t row_size = shape->num_heads * shape->head_dim;
    attention_task *tasks = hr_buffer(context, HR_TASKS, (size_t)num_rows * sizeof *tasks);
    uint8_t *converted = hr_buffer(context, HR_QUERIES, (size_t)(num_rows * row_size) * 4);
    if (tasks == NULL || converted == NULL || hr_reserve_scratch(context, attention_scratch_size(shape)) < 0) return -1;
    write_input(shape->kind, queries, num_rows * row_size, converted, NULL);
    int64_t count = make_tasks(shape, spans, num_spans, 0, num_rows, tasks, &cost);
    attention_job job = {shape, cache, window, tasks, (const uint32_t *)converted, out, HR_F32, 0};
    hr_parallel(context, count * shape->num_kv_heads, 1, cost / (count > 0 ? count : 1), run_attention, &job);
    return 0;
}
