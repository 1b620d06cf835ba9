/* Process groups of c10d and communicators of NCCL, by their address.
 *
 * Vocabulary
 *   number    of a group in this process, by its first use: what records carry
 *   identity  what all ranks of a group agree on and no other group has: of a process group its name and members, of a
 *             communicator the unique id that it was made from, of a part of one the whole's identity and the part. 0: unknown
 *
 * A group's identity is told once, by a GROUP record, when the group gets its number. Private to hooks/; nothing here
 * allocates or waits. */
#ifndef CASTOR_HOOKS_C10D_GROUP_H
#define CASTOR_HOOKS_C10D_GROUP_H

#include <stddef.h>
#include <stdint.h>

/* How one communicator is made from another. */
typedef enum group_division { GROUP_SPLIT, GROUP_SHRINK, GROUP_DIVISION_COUNT } group_division;

/* `rank`: of this process in the group, -1: unknown; `size` 0: unknown. */
void group_made(const void *group, uint64_t identity, int rank, int size);
/* The identity of the part of `group` that `part` names: every rank of the group that takes part in a division does so
 * once, in the same order, whether it belongs to a part or not. */
uint64_t group_divide(const void *group, group_division how, uint64_t part);
/* The group at the address has ended. */
void group_end(const void *group);

/* Given at the first use. */
uint32_t group_number(const void *group);

#endif
