/* Checks that exported functions share. */
#ifndef CASTOR_API_RANK_CHECK_H
#define CASTOR_API_RANK_CHECK_H

#include "store/store.h"

/* A forked child is no rank: a call that would make it one acts in its parent's name, and nobody would wait for it.
 * CASTOR_ERR_UNSUPPORTED: this process is such a child. */
castor_status rank_check(const store *s, const char *function);

/* Of the store, the arena and the budget, by walking all of their tables. CASTOR_ERR_ARGUMENT: they contradict each other. */
castor_status invariants_check(store *s);

#endif
