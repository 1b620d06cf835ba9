/* Process groups of c10d and communicators of NCCL, by their address: in this file and the trace both are process groups.
 *
 * Vocabulary
 *   number    of a group in this process, in order of first use; records carry it
 *   identity  of a group: the same on all its ranks, different for other groups. It is made from a process group's name and
 *             members, a communicator's unique id, or, for one that was made of another, that one's identity and the choice.
 *             0: unknown
 *
 * A PROCESS_GROUP record tells a group's identity once, when the group gets its number. Private to hooks/; nothing here allocates or
 * waits. */
#ifndef CASTOR_HOOKS_C10D_PROCESS_GROUP_H
#define CASTOR_HOOKS_C10D_PROCESS_GROUP_H

#include <stddef.h>
#include <stdint.h>

/* How one communicator is made from another. */
typedef enum process_group_division {
    PROCESS_GROUP_SPLIT,
    PROCESS_GROUP_SHRINK,
    PROCESS_GROUP_DIVISION_COUNT
} process_group_division;

/* `rank`: of this process in the group, -1: unknown; `size` 0: unknown. */
void process_group_made(const void *group, uint64_t identity, int rank, int size);
/* The identity of what `choice` makes of `group`. Every rank that takes part in a division calls it once for the
 * division, in the same order, whether it belongs to what is made or not. */
uint64_t process_group_divide(const void *group, process_group_division how, uint64_t choice);
/* The group at the address has ended. */
void process_group_end(const void *group);

/* The group's number, given at the first use. */
uint32_t process_group_number(const void *group);

#endif
