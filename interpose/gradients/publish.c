#include "publish.h"

#include "arena/pages.h"
#include "base/error.h"
#include "store/demand.h"
#include "store/wait.h"
#include "trace/trace.h"

static bool owned_view(const tensor *t) {
    const store *s = t->store;
    return t->mode == TENSOR_SHARED && t->binding && t->owner == s->rank && !s->detached;
}

castor_status publish_begin(store *s, const ranks_values *agreed, const void *said, size_t bytes,
                            void *every) {
    store_activity_set(s, ACTIVITY_STEP);
    castor_status status = ranks_agree(s, "an optimizer step", agreed, said, bytes, every);
    if (status)
        return store_fail(s, status);
    store_agreed_add(s, agreed->values, agreed->count * sizeof *agreed->values);
    return CASTOR_OK;
}

/* A page that stays edited is seen at the end of the step. */
void publish_push(tensor *const *tensors, uint32_t count) {
    for (uint32_t i = 0; i < count; i++)
        if (owned_view(tensors[i]) && !demand_elsewhere(tensors[i], CHUNK_PARAM) &&
            pages_edited_copy(tensors[i]->binding, tensors[i]->param_alias, tensors[i]->span))
            pages_edited_drop(tensors[i]->binding, tensors[i]->span);
}

void publish_mark(tensor *t) {
    if (!t->store->detached)
        atomic_fetch_add(&t->control->published, 1);
}

castor_status publish_end(store *s, tensor *const *tensors, uint32_t count, uint8_t *changed) {
    castor_status status = wait_barrier(s, "the end of an optimizer step");
    uint64_t private_bytes = 0;
    for (uint32_t i = 0; i < count && !status; i++) {
        tensor *t = tensors[i];
        uint32_t published = atomic_load(&t->control->published);
        changed[i] = published != t->published_seen;
        t->published_seen = published;
        if (t->mode != TENSOR_SHARED || !t->binding)
            continue;
        if (changed[i])
            status = pages_edited_drop(t->binding, t->span);
        else
            private_bytes += pages_edited_bytes(t->binding, t->span);
    }
    if (status)
        store_fail(s, status);
    atomic_store(&s->control->rank[s->rank].private_bytes, private_bytes);
    trace_gauge_set(GAUGE_PRIVATE_BYTES, private_bytes);
    store_activity_set(s, ACTIVITY_SCRIPT);
    return status;
}

/* Of tensors that other nodes keep, or of all others. */
static castor_status equal_drop(store *s, tensor *const *tensors, uint32_t count, bool elsewhere) {
    castor_status status = CASTOR_OK;
    for (uint32_t i = 0; i < count && !status; i++) {
        const tensor *t = tensors[i];
        if (t->mode == TENSOR_SHARED && t->binding && demand_elsewhere(t, CHUNK_PARAM) == elsewhere)
            status = pages_edited_drop_equal(t->binding, t->param_alias, t->span);
    }
    return status ? store_fail(s, status) : CASTOR_OK;
}

castor_status publish_deduplicate(store *s, tensor *const *tensors, uint32_t count, const char *what) {
    store_activity_set(s, ACTIVITY_STEP);
    castor_status status = wait_barrier(s, what);
    if (status == CASTOR_OK)
        publish_push(tensors, count);
    if (status == CASTOR_OK)
        status = wait_barrier(s, what);
    status = status ? store_fail(s, status) : equal_drop(s, tensors, count, false);
    store_activity_set(s, ACTIVITY_SCRIPT);
    return status;
}

castor_status publish_deduplicate_elsewhere(store *s, tensor *const *tensors, uint32_t count) {
    return equal_drop(s, tensors, count, true);
}
