/* Threads and scratch memory of one set of kernels. Not re-entrant: one call at a time. */
#ifndef HEADRACE_CONTEXT_H
#define HEADRACE_CONTEXT_H

#include <stddef.h>

#include "kernels.h"

/* Work on items [first, last); `scratch` is this thread's own. */
typedef void hr_job(void *argument, int64_t first, int64_t last, void *scratch);

/* One instruction set's kernels. */
typedef struct {
    int64_t panel_width;
    int (*pack)(hr_context *, const uint32_t *, int64_t, int64_t, uint32_t *);
    int (*linear)(hr_context *, const hr_product *, const void *, int64_t, int64_t, float *);
    int (*rows)(hr_context *, const hr_product *, const int64_t *, int64_t, float *);
    int (*store)(hr_context *, const hr_attention *, void *, const hr_span *, int64_t, const float *, const float *);
    int (*attend)(hr_context *, const hr_attention *, void *, int64_t, const hr_span *, int64_t, const float *,
                  float *);
    int (*forward)(hr_context *, const hr_model *, const hr_step *);
} hr_kernels;

extern const hr_kernels hr_avx2_kernels, hr_avx512_kernels;

/* Buffers that calls share between their phases; each grows to what was needed most. */
enum { HR_X, HR_INPUT, HR_INPUT_SCALES, HR_QKV, HR_QUERIES, HR_ATTENDED, HR_GATE_UP, HR_TASKS, HR_NUM_BUFFERS };

const hr_kernels *hr_kernels_of(const hr_context *context);

/* At least `size` bytes, aligned to a cache line; NULL where memory is short. The content is not kept. */
void *hr_buffer(hr_context *context, int which, size_t size);

/* Make sure that every thread has `size` bytes of scratch: 0, or -1 where memory is short. */
int hr_reserve_scratch(hr_context *context, size_t size);

/* Run `job` over [0, count) in pieces of `grain`, on all threads if `cost`, the operations of one item, is worth it. */
void hr_parallel(hr_context *context, int64_t count, int64_t grain, int64_t cost, hr_job *job, void *argument);

#endif
