/* Snapshots for forked children, which must see parameters, gradients and states as they were at the fork.
 *
 * Before a fork the process copies the ranges that it views into files of its own, unless the copy of an earlier fork is still
 * valid. The child maps these files over its views, except over pages that the parent had edited: fork copies those. Then the
 * child is detached from the store. The memory is freed with the last child and the parent's next copy, as with copy-on-write. */
#ifndef CASTOR_STORE_SNAPSHOT_H
#define CASTOR_STORE_SNAPSHOT_H

#include "store.h"

/* The optimizer states' views are registered here; parameters and gradients are known from the tensors. */
castor_status snapshot_view_add(struct tensor *t, uint64_t offset, char *view, size_t bytes);
void snapshot_view_remove(store *s, char *view);
/* The states' ranges are about to be freed: the tensor's views get copies of what they show. The caller holds the store's lock. */
void snapshot_views_keep(const struct tensor *t);

void snapshot_fork_prepare(void);
void snapshot_fork_parent(void);
void snapshot_fork_child(void);

#endif
