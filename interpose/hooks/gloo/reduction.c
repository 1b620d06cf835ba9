#include "reduction.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include "hooks/lookup/wrapper.h"

#define KNOWN_MAX 128u

/* What was found of a function: `claimed` is 1 while an entry is written, 2 when it is complete. Entries stay. */
typedef struct known {
    _Atomic uint32_t claimed;
    const void *invoke, *function;
    size_t element_bytes;
    node_loop *loop;
} known;

static known found[KNOWN_MAX];

bool gloo_is_in_library(const void *address, const void *other) {
    Dl_info a, b;
    return address && dladdr(address, &a) && dladdr(other, &b) && a.dli_fbase == b.dli_fbase;
}

void gloo_reduction_apply(void *context, void *out, const void *a, const void *b, size_t numel) {
    const gloo_function *function = context;
    function->invoke(function, &out, &a, &b, &numel);
}

static known *known_of(const gloo_function *function, const void *invoke, size_t element_bytes) {
    for (uint32_t i = 0; i < KNOWN_MAX; i++) {
        known *k = &found[i];
        uint32_t claimed = atomic_load_explicit(&k->claimed, memory_order_acquire);
        if (claimed == 2 && k->invoke == invoke && k->function == function->functor[0] &&
            k->element_bytes == element_bytes)
            return k;
        if (claimed == 0)
            break;
    }
    return NULL;
}

/* Two threads may add the same: the first is found from then on. */
static void known_add(const gloo_function *function, const void *invoke, size_t element_bytes,
                      node_loop *loop) {
    for (uint32_t i = 0; i < KNOWN_MAX; i++) {
        known *k = &found[i];
        uint32_t free = 0;
        if (!atomic_compare_exchange_strong(&k->claimed, &free, 1))
            continue;
        k->invoke = invoke;
        k->function = function->functor[0];
        k->element_bytes = element_bytes;
        k->loop = loop;
        atomic_store_explicit(&k->claimed, 2, memory_order_release);
        return;
    }
}

node_loop *gloo_reduction_find(const gloo_function *function, size_t element_bytes) {
    const void *real = hooks_real(HOOK_GLOO_DATA_ALLREDUCE), *invoke;
    memcpy(&invoke, &function->invoke, sizeof invoke);
    known *k = known_of(function, invoke, element_bytes);
    if (k)
        return k->loop;
    /* What it does depends on these two alone if they are code of the library: no object of the caller's. */
    if (!real || !gloo_is_in_library(invoke, real) || !gloo_is_in_library(function->functor[0], real))
        return NULL;
    node_reduction reduction = {gloo_reduction_apply, (void *)function};
    node_loop *loop = node_loop_find(&reduction, element_bytes);
    known_add(function, invoke, element_bytes, loop);
    return loop;
}
