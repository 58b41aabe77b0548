/* A whole decoder over one step's tokens. The residual stream and all sums are float32; only what enters a product or
 * the cache is rounded to its kind. Many tokens are taken in parts, so that what lies between layers stays in cache.
 */

#define PART_ROWS 256

typedef struct {
    hr_context *context;
    const hr_model *model;
    const hr_step *step;
    const hr_layer *layer;
    int64_t first_row, num_rows; /* of the part */
    float *x;                    /* the residual stream [rows][hidden] */
    uint8_t *input;              /* of the next product, in its kind */
    float *input_scales;
    const hr_product *next; /* the product that `input` is written for */
    const float *norm;
    float *qkv, *gate_up;
    uint8_t *queries;
    float *attended;
    attention_task *tasks;
    int64_t num_tasks, task_cost;
} forward_run;

INLINE void normalize(const float *x, const float *weight, int64_t size, float eps, float *out) {
    vfloat squares = zeros();
    int64_t i = 0;
    for (; i + LANES <= size; i += LANES) squares = fused(load(x + i), load(x + i), squares);
    float sum = sum_lanes(squares);
    for (; i < size; ++i) sum += x[i] * x[i];
    float factor = 1.0f / __builtin_sqrtf(sum / (float)size + eps);
    for (i = 0; i < size; ++i) out[i] = x[i] * factor * weight[i];
}

INLINE uint8_t *input_row(const forward_run *run, int64_t row) {
    return run->input + row * input_steps(run->next) * 4;
}

static void run_embedding(void *argument, int64_t first, int64_t last, void *scratch) {
    (void)scratch;
    const forward_run *run = argument;
    const hr_model *model = run->model;
    const int64_t size = model->hidden_size;
    for (int64_t row = first; row < last; ++row) {
        int64_t token = run->step->token_ids[run->first_row + row];
        float *out = run->x + row * size;
        if (model->embedding == NULL) {
            unpack_row(&model->head, token, out);
        } else if (model->embedding_kind == HR_F32) {
            memcpy(out, (const float *)model->embedding + token * size, (size_t)size * sizeof(float));
        } else {
            const uint16_t *halves = (const uint16_t *)model->embedding + token * size;
            for (int64_t i = 0; i < size; ++i) out[i] = bf16_to_float(halves[i]);
        }
    }
}

static void run_norm(void *argument, int64_t first, int64_t last, void *scratch) {
    const forward_run *run = argument;
    const int64_t size = run->model->hidden_size;
    for (int64_t row = first; row < last; ++row) {
        normalize(run->x + row * size, run->norm, size, run->model->eps, scratch);
        write_input(run->next->kind, scratch, size, input_row(run, row), run->input_scales + row);
    }
}

/* Turn a head to its position: pairs are (i, i + half). */
INLINE void rotate(float *head, const float *cos, const float *sin, int64_t half) {
    for (int64_t i = 0; i < half; ++i) {
        float a = head[i], b = head[half + i];
        head[i] = a * cos[i] - b * sin[i];
        head[half + i] = b * cos[i] + a * sin[i];
    }
}

static void place_row(const forward_run *run, const hr_span *span, int64_t position, int64_t row) {
    const hr_model *model = run->model;
    const hr_attention *shape = &model->attention;
    const hr_layer *layer = run->layer;
    const int64_t head_dim = shape->head_dim, half = head_dim / 2, num_turned = shape->num_heads + shape->num_kv_heads;
    const float *cos = model->cos + position * half, *sin = model->sin + position * half;
    float *heads = run->qkv + row * layer->qkv.n;
    for (int64_t head = 0; head < num_turned; ++head) {
        float *at = heads + head * head_dim;
        const float *weight = head < shape->num_heads ? layer->q_norm : layer->k_norm;
        if (weight != NULL) normalize(at, weight, head_dim, model->eps, at);
        rotate(at, cos, sin, half);
    }
    const int64_t size = shape->num_heads * head_dim;
    write_input(shape->kind, heads, size, run->queries + row * size * bytes_per_value(shape->kind), NULL);
    for (int64_t head = 0; head < shape->num_kv_heads; ++head)
        store_token(shape, layer->cache, span, position, head, heads + size + head * head_dim,
                    heads + (num_turned + head) * head_dim);
}

/* Items are tasks. */
static void run_place(void *argument, int64_t first, int64_t last, void *scratch) {
    (void)scratch;
    const forward_run *run = argument;
    for (int64_t item = first; item < last; ++item) {
        const attention_task *task = run->tasks + item;
        for (int64_t i = task->first; i < task->first + task->num_rows; ++i)
            place_row(run, task->span, task->span->position + i, task->span->row + i - run->first_row);
    }
}

static void run_attended_input(void *argument, int64_t first, int64_t last, void *scratch) {
    (void)scratch;
    const forward_run *run = argument;
    const int64_t size = run->next->k;
    for (int64_t row = first; row < last; ++row)
        write_input(run->next->kind, run->attended + row * size, size, input_row(run, row),
                    run->input_scales + row);
}

/* silu(gate) x up. */
static void run_gate(void *argument, int64_t first, int64_t last, void *scratch) {
    const forward_run *run = argument;
    const int64_t size = run->model->intermediate_size;
    float *product = scratch;
    for (int64_t row = first; row < last; ++row) {
        const float *gate = run->gate_up + row * 2 * size, *up = gate + size;
        int64_t i = 0;
        for (; i + LANES <= size; i += LANES) {
            vfloat g = load(gate + i);
            store(product + i, g / (splat(1.0f) + exponential(-g)) * load(up + i));
        }
        for (; i < size; ++i) {
            float lanes[LANES] = {0};
            lanes[0] = -gate[i];
            store(lanes, exponential(load(lanes)));
            product[i] = gate[i] / (1.0f + lanes[0]) * up[i];
        }
        write_input(run->next->kind, product, size, input_row(run, row), run->input_scales + row);
    }
}

/* Rows are few or many, threads work on them together; about `cost` operations each. */
static void for_rows(forward_run *run, hr_job *job, int64_t cost) {
    hr_parallel(run->context, run->num_rows, 8, cost, job, run);
}

static void normalize_rows(forward_run *run, const float *weight, const hr_product *next) {
    run->norm = weight;
    run->next = next;
    for_rows(run, run_norm, run->model->hidden_size * 4);
}

static void apply(forward_run *run, const hr_product *product, float *out, int adds) {
    multiply(run->context, product, run->input, run->input_scales, run->num_rows, out, adds);
}

static void attend_rows(forward_run *run, const hr_product *next) {
    const hr_attention *shape = &run->model->attention;
    const int is_direct = next->kind == HR_F32 || next->kind == HR_BF16; /* int8 rows are scaled as a whole */
    attention_job job = {
        .shape = shape,
        .cache = run->layer->cache,
        .window = run->layer->window,
        .tasks = run->tasks,
        .queries = (const uint32_t *)run->queries,
        .out = is_direct ? (void *)run->input : (void *)run->attended,
        .out_kind = is_direct ? next->kind : HR_F32,
        .first_row = run->first_row,
    };
    int64_t count = run->num_tasks * shape->num_kv_heads;
    hr_parallel(run->context, count, 1, run->task_cost / run->num_tasks, run_attention, &job);
    run->next = next;
    if (!is_direct) for_rows(run, run_attended_input, next->k * 4);
}

static void run_layer(forward_run *run, const hr_layer *layer) {
    const hr_model *model = run->model;
    run->layer = layer;
    normalize_rows(run, layer->attention_norm, &layer->qkv);
    apply(run, &layer->qkv, run->qkv, 0);
    hr_parallel(run->context, run->num_tasks, 1, run->num_rows * layer->qkv.n * 4 / run->num_tasks, run_place, run);
    attend_rows(run, &layer->output);
    apply(run, &layer->output, run->x, 1);
    normalize_rows(run, layer->mlp_norm, &layer->gate_up);
    apply(run, &layer->gate_up, run->gate_up, 0);
    run->next = &layer->down;
    for_rows(run, run_gate, model->intermediate_size * 8);
    apply(run, &layer->down, run->x, 1);
}

static void write_outputs(const forward_run *run) {
    const hr_step *step = run->step;
    const int64_t size = run->model->hidden_size, row_bytes = size * bytes_per_value(step->hidden_kind);
    for (int64_t i = 0; i < step->num_outputs; ++i) {
        int64_t row = (step->output_rows != NULL ? step->output_rows[i] : i) - run->first_row;
        if (row < 0 || row >= run->num_rows) continue;
        float *x = run->x + row * size;
        normalize(x, run->model->final_norm, size, run->model->eps, run->gate_up);
        write_input(step->hidden_kind, run->gate_up, size, (char *)step->hidden + i * row_bytes, NULL);
    }
}

INLINE size_t larger(size_t a, size_t b) { return a > b ? a : b; }

static size_t forward_scratch(const hr_model *model) {
    size_t row = (size_t)(model->hidden_size + model->intermediate_size) * sizeof(float);
    return larger(row, attention_scratch_size(&model->attention));
}

static int take_buffers(forward_run *run, int64_t most_rows) {
    const hr_model *model = run->model;
    const hr_attention *shape = &model->attention;
    size_t rows = (size_t)most_rows, heads = (size_t)(shape->num_heads * shape->head_dim);
    size_t qkv = heads + (size_t)(2 * shape->num_kv_heads * shape->head_dim);
    size_t widest = larger(larger(heads, (size_t)model->hidden_size), (size_t)model->intermediate_size);
    run->x = hr_buffer(run->context, HR_X, rows * (size_t)model->hidden_size * 4);
    run->input = hr_buffer(run->context, HR_INPUT, rows * widest * 4);
    run->input_scales = hr_buffer(run->context, HR_INPUT_SCALES, rows * 4);
    run->qkv = hr_buffer(run->context, HR_QKV, rows * qkv * 4);
    run->queries = hr_buffer(run->context, HR_QUERIES, rows * heads * 4);
    run->attended = hr_buffer(run->context, HR_ATTENDED, rows * heads * 4);
    run->gate_up = hr_buffer(run->context, HR_GATE_UP,
                             larger(rows * (size_t)model->intermediate_size * 8, (size_t)model->hidden_size * 4));
    run->tasks = hr_buffer(run->context, HR_TASKS, rows * sizeof *run->tasks);
    int is_short = run->x == NULL || run->input == NULL || run->input_scales == NULL || run->qkv == NULL ||
                   run->queries == NULL || run->attended == NULL || run->gate_up == NULL || run->tasks == NULL;
    return is_short ? -1 : hr_reserve_scratch(run->context, forward_scratch(model));
}

static int forward(hr_context *context, const hr_model *model, const hr_step *step) {
    forward_run run = {.context = context, .model = model, .step = step};
    if (take_buffers(&run, step->num_tokens < PART_ROWS ? step->num_tokens : PART_ROWS) < 0) return -1;
    for (int64_t first = 0; first < step->num_tokens; first += PART_ROWS) {
        int64_t rest = step->num_tokens - first;
        run.first_row = first;
        run.num_rows = rest < PART_ROWS ? rest : PART_ROWS;
        run.num_tasks = make_tasks(&model->attention, step->spans, step->num_spans, first, first + run.num_rows,
                                   run.tasks, &run.task_cost);
        for_rows(&run, run_embedding, model->hidden_size);
        for (int64_t i = 0; i < model->num_layers; ++i) run_layer(&run, model->layers + i);
        write_outputs(&run);
    }
    return 0;
}
