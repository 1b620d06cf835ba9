#include "snapshot.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
#include "arena/pages.h"
#include "base/error.h"
#include "base/file_bytes.h"
#include "base/log.h"
#include "base/table.h"
#include "demand.h"
#include "tensor.h"
#include "window.h"

#define NO_VIEW "no memory for the forked child's view of the weights: it may see later ones"

typedef struct state_view {
    const tensor *of;
    uint64_t offset;
    char *view;
    size_t bytes;
} state_view;

typedef struct snapshot {
    int fd[CHUNK_KIND_COUNT]; /* same offsets as the store's files; -1: none */
    uint64_t changes;         /* of the store when the copy was made */
    bool good;
    state_view *views; /* under the store's lock */
    uint32_t view_count, view_capacity;
} snapshot;

/* Calls `visit` for each range that this process views; `t` NULL: an optimizer state's. */
typedef bool (*view_visit)(store *s, tensor *t, chunk_kind kind, uint64_t offset, char *view, size_t bytes);

static bool views_visit(store *s, view_visit visit) {
    for (uint32_t id = 0; id < s->tensor_count; id++) {
        tensor *t = s->tensors[id];
        if (t->mode != TENSOR_SHARED)
            continue;
        if (t->binding && !visit(s, t, CHUNK_PARAM, t->param_offset, t->binding, t->span))
            return false;
        for (const window *w = t->windows; w; w = w->next)
            if (w->live && w->current && !w->zeroed &&
                !visit(s, t, CHUNK_GRAD, t->grad_offset, w->address, t->sum_span))
                return false;
    }
    for (uint32_t i = 0; s->snapshot && i < s->snapshot->view_count; i++) {
        const state_view *v = &s->snapshot->views[i];
        if (!visit(s, NULL, CHUNK_OPTIM, v->offset, v->view, v->bytes))
            return false;
    }
    return true;
}

static snapshot *snapshot_of(store *s) {
    if (!s->snapshot && (s->snapshot = calloc(1, sizeof *s->snapshot)) != NULL)
        for (int kind = 0; kind < CHUNK_KIND_COUNT; kind++)
            s->snapshot->fd[kind] = -1;
    return s->snapshot;
}

castor_status snapshot_view_add(tensor *t, uint64_t offset, char *view, size_t bytes) {
    store *s = t->store;
    castor_status status = CASTOR_ERR_MEMORY;
    pthread_mutex_lock(&s->lock);
    snapshot *snap = snapshot_of(s);
    state_view *views =
        snap ? table_room(snap->views, &snap->view_capacity, snap->view_count, sizeof *views) : NULL;
    if (views) {
        snap->views = views;
        snap->views[snap->view_count++] = (state_view){t, offset, view, bytes};
        s->changes++;
        status = CASTOR_OK;
    } else {
        error_set(status, "no memory for the table of optimizer states");
    }
    pthread_mutex_unlock(&s->lock);
    return status;
}

void snapshot_view_remove(store *s, char *view) {
    pthread_mutex_lock(&s->lock);
    for (uint32_t i = 0; s->snapshot && i < s->snapshot->view_count; i++)
        if (s->snapshot->views[i].view == view) {
            s->snapshot->views[i] = s->snapshot->views[--s->snapshot->view_count];
            break;
        }
    pthread_mutex_unlock(&s->lock);
}

void snapshot_views_keep(const tensor *t) {
    const snapshot *snap = t->store->snapshot;
    for (uint32_t i = 0; snap && i < snap->view_count; i++)
        if (snap->views[i].of == t && pages_privatize(snap->views[i].view, snap->views[i].bytes) != CASTOR_OK)
            LOG_W("no memory to keep the states of a parameter that is gone: whoever still holds them sees "
                  "zeros");
}

/* Through the store's file and not through the view: the child keeps the parent's edits by fork itself. */
static bool copy_range(store *s, tensor *t, chunk_kind kind, uint64_t offset, char *view, size_t bytes) {
    (void)view;
    char *from;
    if (t && demand_pin(t, kind) != CASTOR_OK)
        return false;
    if (pages_map_alias(s->chunks.list[kind].fd, offset & ~(PAGE_BYTES - 1), bytes, NULL, &from) != CASTOR_OK)
        from = NULL;
    bool done = from && file_bytes_write(s->snapshot->fd[kind], from, bytes, offset) == 0;
    if (from)
        munmap(from, bytes);
    if (t)
        demand_unpin(t, kind);
    return done;
}

static bool take(store *s) {
    snapshot *snap = snapshot_of(s);
    if (!snap)
        return false;
    if (snap->good && snap->changes == s->changes)
        return true;
    snap->good = false;
    for (int kind = 0; kind < CHUNK_KIND_COUNT; kind++) {
        if (snap->fd[kind] >= 0)
            close(snap->fd[kind]);
        snap->fd[kind] = memfd_create("castor-snapshot", MFD_CLOEXEC);
        uint64_t sections = kind == CHUNK_OPTIM ? (uint64_t)s->world : 1;
        if (snap->fd[kind] < 0 || ftruncate(snap->fd[kind], (off_t)(s->chunks.section_bytes * sections)) != 0)
            return false;
    }
    snap->changes = s->changes;
    return snap->good = views_visit(s, copy_range);
}

void snapshot_fork_prepare(void) {
    for (store *s = store_first(); s; s = s->next) {
        pthread_mutex_lock(&s->lock);
        if (!s->detached && s->tensor_count && !take(s))
            LOG_W(NO_VIEW);
    }
}

void snapshot_fork_parent(void) {
    for (store *s = store_first(); s; s = s->next)
        pthread_mutex_unlock(&s->lock);
}

static bool map_range(store *s, tensor *t, chunk_kind kind, uint64_t offset, char *view, size_t bytes) {
    (void)t;
    char *at = view;
    while (at < view + bytes) {
        page_run edited = {view + bytes, 0};
        if (!pages_edited_next(at, (size_t)(view + bytes - at), &edited))
            edited = (page_run){view + bytes, 0};
        if (edited.start > at && pages_map_view(s->snapshot->fd[kind], offset + (uint64_t)(at - view),
                                                (size_t)(edited.start - at), at, NULL) != CASTOR_OK)
            return false;
        at = edited.start + edited.bytes;
    }
    return true;
}

void snapshot_fork_child(void) {
    if (store_first() && !store_first()->detached && !pages_told())
        LOG_W("/proc/self/pagemap does not tell this forked child which pages are its own (errno %d): it may "
              "see later "
              "weights than those of the fork; raise the limit on open files (ulimit -n)",
              errno);
    for (store *s = store_first(); s; s = s->next) {
        if (s->snapshot && s->snapshot->good && !s->detached && !views_visit(s, map_range))
            LOG_W(NO_VIEW);
        s->detached = true;
        pthread_mutex_init(&s->lock, NULL);
    }
}
