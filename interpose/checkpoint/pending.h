/* Files that a save in the background has not written yet. Whoever uses one of them by its name waits until it is there.
 *
 * The list lies in memory that forked children share, so that they wait as well. The wrappers of libc's file functions call
 * pending_await: no allocation, no lock. */
#ifndef CASTOR_CHECKPOINT_PENDING_H
#define CASTOR_CHECKPOINT_PENDING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum pending_use {
    PENDING_FILE, /* the file of that name */
    PENDING_TREE, /* or one below that directory */
} pending_use;

/* False: the list is full, or the name too long. */
bool pending_add(const char *place);
void pending_remove(const char *place);

typedef struct pending_list pending_list;
extern pending_list *pending_now; /* NULL: there never was one */
bool pending_any(void);

/* Waits while the path, relative to `folder`, is one that is pending. NULL: any. Not for the
 * library's own calls. */
void pending_await_slow(int folder, const char *path, pending_use use);
static inline void pending_await(int folder, const char *path, pending_use use) {
    if (__builtin_expect(__atomic_load_n(&pending_now, __ATOMIC_RELAXED) != NULL, 0))
        pending_await_slow(folder, path, use);
}

#endif
