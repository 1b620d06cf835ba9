/* What the steps of all optimizers share: threads, and the elements that fill no vector. */
#include <string.h>
#include "optimizer.h"

enum {
    LANES_MAX = 16,
    TAIL = 8, /* what is left of a tensor by vectors of so many floats, PyTorch computes one by one */
    PIECE_ELEMENTS = 64,   /* pieces of threads begin at multiples: whole cache lines of each array */
    THREAD_ELEMENTS = 8192 /* fewer are not worth a thread */
};

static const size_t lanes_of[KERNEL_VARIANT_COUNT] = {[KERNEL_VARIANT_REFERENCE] = 1,
                                                      [KERNEL_VARIANT_AVX2] = 8,
                                                      [KERNEL_VARIANT_AVX512] = LANES_MAX,
                                                      [KERNEL_VARIANT_NEON] = 4};

typedef struct step_job {
    kernel_step_loop *loop;
    const kernel_roots *roots;
    size_t lanes;
    const kernel_step *step;
    const kernel_range *ranges;
    size_t count, elements;
    int tasks;
} step_job;

static size_t smaller(size_t a, size_t b) {
    return a < b ? a : b;
}

static kernel_range subrange(const kernel_step *step, const kernel_range *range, size_t begin, size_t end) {
    size_t param_bytes = kernel_dtype_bytes((kernel_dtype)step->param_dtype);
    size_t grad_bytes = kernel_dtype_bytes((kernel_dtype)step->grad_dtype);
    kernel_range some = {.param = (char *)range->param + begin * param_bytes,
                         .grad = (const char *)range->grad + begin * grad_bytes,
                         .master = range->master ? range->master + begin : NULL,
                         .offset = range->offset + begin,
                         .count = end - begin,
                         .numel = range->numel};
    for (size_t i = 0; i < KERNEL_OPTIMIZER_STATES; i++)
        some.states[i] = range->states[i] ? range->states[i] + begin : NULL;
    return some;
}

static void copy(void *dst, const void *src, size_t bytes) {
    if (dst && src)
        memcpy(dst, src, bytes);
}

/* Less than a vector goes through one of zeros, for the same loop. */
static void step_rest(const step_job *job, const kernel_range *range, bool tail) {
    float param[LANES_MAX] = {0}, grad[LANES_MAX] = {0}, master[LANES_MAX] = {0};
    float states[KERNEL_OPTIMIZER_STATES][LANES_MAX] = {{0}};
    size_t param_bytes = range->count * kernel_dtype_bytes((kernel_dtype)job->step->param_dtype);
    size_t grad_bytes = range->count * kernel_dtype_bytes((kernel_dtype)job->step->grad_dtype);
    size_t float_bytes = range->count * sizeof(float);
    kernel_range padded = {.param = param,
                           .grad = grad,
                           .master = range->master ? master : NULL,
                           .offset = range->offset,
                           .count = job->lanes,
                           .numel = range->numel};
    copy(param, range->param, param_bytes);
    copy(grad, range->grad, grad_bytes);
    copy(padded.master, range->master, float_bytes);
    for (size_t i = 0; i < KERNEL_OPTIMIZER_STATES; i++) {
        padded.states[i] = range->states[i] ? states[i] : NULL;
        copy(padded.states[i], range->states[i], float_bytes);
    }
    job->loop(job->step, &padded, tail, job->roots);
    copy(range->param, param, param_bytes);
    copy(range->master, padded.master, float_bytes);
    for (size_t i = 0; i < KERNEL_OPTIMIZER_STATES; i++)
        copy(range->states[i], padded.states[i], float_bytes);
}

static void step_span(const step_job *job, const kernel_range *range, size_t begin, size_t end, bool tail) {
    size_t whole = begin + (end - begin) / job->lanes * job->lanes;
    if (begin < whole) {
        kernel_range some = subrange(job->step, range, begin, whole);
        job->loop(job->step, &some, tail, job->roots);
    }
    if (whole < end) {
        kernel_range some = subrange(job->step, range, whole, end);
        step_rest(job, &some, tail);
    }
}

static void step_piece(const step_job *job, const kernel_range *range, size_t begin, size_t end) {
    size_t tail = end;
    if (job->step->fused) {
        size_t whole = range->numel / TAIL * TAIL; /* where the tensor's tail begins */
        tail = whole <= range->offset + begin ? begin : smaller(whole - range->offset, end);
    }
    step_span(job, range, begin, tail, false);
    step_span(job, range, tail, end, true);
}

/* Task `task`: its share of the elements of all ranges, laid end to end. */
static void step_task(void *job_, int task) {
    const step_job *job = job_;
    size_t share = job->elements / (size_t)job->tasks, more = job->elements % (size_t)job->tasks;
    size_t number = (size_t)task;
    size_t begin = share * number + smaller(number, more), end = begin + share + (number < more);
    for (size_t i = 0, at = 0; i < job->count && at < end; at += job->ranges[i].count, i++) {
        const kernel_range *range = &job->ranges[i];
        if (at + range->count <= begin)
            continue;
        /* Both neighbours round the border between them to the same element. */
        size_t first = begin <= at ? 0 : (begin - at) / PIECE_ELEMENTS * PIECE_ELEMENTS;
        size_t last = end >= at + range->count ? range->count : (end - at) / PIECE_ELEMENTS * PIECE_ELEMENTS;
        step_piece(job, range, first, last);
    }
}

void kernel_step_run(kernel_step_loop *const loop_of[KERNEL_VARIANT_COUNT], const void *step,
                     const kernel_range *ranges, size_t count, const kernel_host *host) {
    kernel_variant variant = kernel_variant_current();
    step_job job = {.loop = loop_of[variant],
                    .roots = host && !((const kernel_step *)step)->fused ? host->roots : NULL,
                    .lanes = lanes_of[variant],
                    .step = step,
                    .ranges = ranges,
                    .count = count,
                    .tasks = 1};
    for (size_t i = 0; i < count; i++)
        job.elements += ranges[i].count;
    if (host && host->run && host->threads > 1)
        job.tasks = (int)smaller((size_t)host->threads, job.elements / THREAD_ELEMENTS + 1);
    if (job.tasks > 1)
        host->run(step_task, &job, job.tasks);
    else
        step_task(&job, 0);
}
