/* Threads that wait for work by spinning for some microseconds, then asleep; and buffers that grow.
 *
 * A round is one job. The caller works on it too, and then closes it: it waits for the threads that entered, not for
 * those that the system has not let run yet, so that a busy machine costs little.
 */
#define _GNU_SOURCE
#include "context.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>

#if defined(__x86_64__)
#define PAUSE() __builtin_ia32_pause()
#else
#define PAUSE() ((void)0)
#endif

#define MAX_THREADS 256
#define SPINS_BEFORE_SLEEP 6000
#define SPINS_BEFORE_YIELD 2000
/* Fewer operations than this take less time than waking another thread. */
#define MIN_PARALLEL_COST 100000
#define HUGE_PAGE ((size_t)2 << 20)

typedef struct {
    void *memory;
    size_t size;
} buffer;

struct hr_context {
    const hr_kernels *kernels;
    int64_t num_threads;
    buffer buffers[HR_NUM_BUFFERS];
    buffer scratch[MAX_THREADS];
    pthread_t threads[MAX_THREADS];
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    int64_t num_sleeping; /* under the mutex */
    atomic_ulong round;     /* a new number: a new job, or the end */
    atomic_ulong open_round; /* the round that threads may still enter, or 0 */
    atomic_long next_item, num_inside;
    atomic_bool is_closed;
    hr_job *job;
    void *argument;
    int64_t count, grain;
};

typedef struct {
    hr_context *context;
    int64_t index;
} worker_start;

static bool grow(buffer *buffer, size_t size) {
    if (buffer->size >= size) return true;
    free(buffer->memory);
    buffer->size = 0;
    size_t rounded = (size + 4095) & ~(size_t)4095;
    size_t alignment = rounded >= HUGE_PAGE ? HUGE_PAGE : 4096;
    buffer->memory = aligned_alloc(alignment, (rounded + alignment - 1) & ~(alignment - 1));
    if (buffer->memory == NULL) return false;
    buffer->size = rounded;
#if defined(MADV_HUGEPAGE)
    if (alignment == HUGE_PAGE) madvise(buffer->memory, rounded, MADV_HUGEPAGE);
#endif
    return true;
}

const hr_kernels *hr_kernels_of(const hr_context *context) { return context->kernels; }

void *hr_buffer(hr_context *context, int which, size_t size) {
    return grow(&context->buffers[which], size) ? context->buffers[which].memory : NULL;
}

int hr_reserve_scratch(hr_context *context, size_t size) {
    for (int64_t i = 0; i < context->num_threads; ++i)
        if (!grow(&context->scratch[i], size)) return -1;
    return 0;
}

static void work(hr_context *context, int64_t thread) {
    for (;;) {
        int64_t first = atomic_fetch_add(&context->next_item, context->grain);
        if (first >= context->count) return;
        int64_t last = first + context->grain < context->count ? first + context->grain : context->count;
        context->job(context->argument, first, last, context->scratch[thread].memory);
    }
}

/* The number of a round after `seen`. */
static unsigned long next_round(hr_context *context, unsigned long seen) {
    for (int spin = 0; spin < SPINS_BEFORE_SLEEP; ++spin) {
        unsigned long round = atomic_load(&context->round);
        if (round != seen) return round;
        PAUSE();
    }
    pthread_mutex_lock(&context->mutex);
    context->num_sleeping++;
    while (atomic_load(&context->round) == seen) pthread_cond_wait(&context->wake, &context->mutex);
    context->num_sleeping--;
    pthread_mutex_unlock(&context->mutex);
    return atomic_load(&context->round);
}

static void start_round(hr_context *context) {
    pthread_mutex_lock(&context->mutex);
    atomic_store(&context->open_round, atomic_load(&context->round) + 1);
    atomic_fetch_add(&context->round, 1);
    if (context->num_sleeping > 0) pthread_cond_broadcast(&context->wake);
    pthread_mutex_unlock(&context->mutex);
}

static void *run_worker(void *argument) {
    worker_start start = *(worker_start *)argument;
    free(argument);
    hr_context *context = start.context;
    unsigned long seen = 0;
    for (;;) {
        seen = next_round(context, seen);
        if (atomic_load(&context->is_closed)) return NULL;
        /* Whoever enters after the round was closed sees that here, and whoever closes it sees who is inside. */
        atomic_fetch_add(&context->num_inside, 1);
        if (atomic_load(&context->open_round) == seen) work(context, start.index);
        atomic_fetch_sub(&context->num_inside, 1);
    }
}

void hr_parallel(hr_context *context, int64_t count, int64_t grain, int64_t cost, hr_job *job, void *argument) {
    if (count <= 0) return;
    if (context->num_threads == 1 || count <= grain || count * cost < MIN_PARALLEL_COST) {
        job(argument, 0, count, context->scratch[0].memory);
        return;
    }
    context->job = job;
    context->argument = argument;
    context->count = count;
    context->grain = grain;
    atomic_store(&context->next_item, 0);
    start_round(context);
    work(context, 0);
    atomic_store(&context->open_round, 0);
    for (long spin = 0; atomic_load(&context->num_inside) > 0; ++spin) {
        if (spin < SPINS_BEFORE_YIELD)
            PAUSE();
        else
            sched_yield();
    }
}

static bool start_worker(hr_context *context, int64_t index) {
    worker_start *start = malloc(sizeof *start);
    if (start == NULL) return false;
    *start = (worker_start){context, index};
    if (pthread_create(&context->threads[index], NULL, run_worker, start) == 0) return true;
    free(start);
    return false;
}

hr_context *hr_open(int64_t isa, int64_t num_threads) {
    if (isa == HR_NONE || isa > hr_best_isa()) return NULL;
    hr_context *context = calloc(1, sizeof *context);
    if (context == NULL) return NULL;
#if defined(__x86_64__)
    context->kernels = isa == HR_AVX512 ? &hr_avx512_kernels : &hr_avx2_kernels;
#endif
    pthread_mutex_init(&context->mutex, NULL);
    pthread_cond_init(&context->wake, NULL);
    context->num_threads = 1;
    if (num_threads > MAX_THREADS) num_threads = MAX_THREADS;
    /* A system that gives fewer threads than asked for is served with those. */
    while (context->num_threads < num_threads && start_worker(context, context->num_threads)) context->num_threads++;
    return context;
}

void hr_close(hr_context *context) {
    if (context == NULL) return;
    atomic_store(&context->is_closed, true);
    start_round(context);
    for (int64_t i = 1; i < context->num_threads; ++i) pthread_join(context->threads[i], NULL);
    for (int i = 0; i < HR_NUM_BUFFERS; ++i) free(context->buffers[i].memory);
    for (int i = 0; i < MAX_THREADS; ++i) free(context->scratch[i].memory);
    pthread_cond_destroy(&context->wake);
    pthread_mutex_destroy(&context->mutex);
    free(context);
}
