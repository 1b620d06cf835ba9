/* Forked children: they must see parameters, gradients and states as they were at the fork.
 *
 * Before a fork, the ranges that this process views are copied into files of the process's own, unless the copy of an
 * earlier fork still holds. The child maps these files over its views, page runs that the parent had edited (which
 * fork copies anyway) excepted, and is detached: the store is not its any more. The memory goes with the last child
 * and the parent's next copy, as copy-on-write's would. */
#ifndef CASTOR_STORE_SNAPSHOT_H
#define CASTOR_STORE_SNAPSHOT_H

#include "store.h"

/* The optimizer states' views are registered here; parameters and gradients are known from the tensors. */
castor_status snapshot_view_add(struct tensor *t, uint64_t offset, char *view, size_t bytes);
void snapshot_view_remove(store *s, char *view);
/* The states' ranges are about to be given back: the tensor's views keep what they show. The caller holds the store's lock. */
void snapshot_views_keep(const struct tensor *t);

void snapshot_fork_prepare(void);
void snapshot_fork_parent(void);
void snapshot_fork_child(void);

#endif
