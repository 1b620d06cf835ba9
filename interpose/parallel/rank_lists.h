/* The rank lists of tensor and data parallelism over any subset of a job's ranks.
 *
 *   ranks        the subset, sorted: tp * dp of them
 *   tensor list  i of dp: ranks[i * tp + j] over j; these ranks share one copy of the model
 *   data list    j of tp: ranks[i * tp + j] over i; these ranks hold the same part of it
 *
 * A rank's place is its position in a list, not what its number alone would give: a subset may begin anywhere and have gaps. */
#ifndef CASTOR_PARALLEL_RANK_LISTS_H
#define CASTOR_PARALLEL_RANK_LISTS_H

#include <stdbool.h>
#include <stdint.h>
#include "base/status.h"

enum { RANKS_MOST = 65536 }; /* a rank is a number below */

typedef enum rank_list_kind { RANK_LIST_TENSOR, RANK_LIST_DATA } rank_list_kind;

/* Sorts `count` ranks into `sorted`, which may be `ranks`; NULL: only checks them. CASTOR_ERR_ARGUMENT: none, one twice, or one that
 * is no rank. */
castor_status rank_list_sort(const int32_t *ranks, int32_t count, int32_t *sorted);

/* The degrees of `size` ranks; 0 is a degree to be found: size / the other, rounded down, or tp = 1 and dp = size without any.
 * CASTOR_ERR_ARGUMENT: their product is not `size`. */
castor_status rank_list_degrees(int32_t size, int32_t *tp, int32_t *dp);

/* List `index` of its kind, from tp * dp sorted ranks: tp ranks of a tensor list, dp of a data list. CASTOR_ERR_ARGUMENT: there
 * is no such list. */
castor_status rank_list_get(rank_list_kind kind, const int32_t *ranks, int32_t tp, int32_t dp, int32_t index,
                            int32_t *out);

#endif
