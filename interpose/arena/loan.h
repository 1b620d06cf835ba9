/* Loans: pages of a file as room for blocks, while the file's owner does not need them. Private to the arena; every function is
 * called under the arena's lock, but for those that the arena's header declares.
 *
 * A loan has pages of the region at which its file is mapped, shared. Its owner offers it when its bytes mean nothing, and recalls
 * it before they do again. From the first recall after an offer no more blocks are made, as the owner will go on recalling. A block
 * that is still there gets pages of its own, at the same address.
 *
 *   held      the owner needs the pages, or may; also the freed pages of a loan that was recalled
 *   offered   nobody needs them as soon as the loan is idle
 *   lent      blocks may be made there
 *   ended     no loan any more, but for the blocks that still lie there; each has pages of its own */
#ifndef CASTOR_ARENA_LOAN_H
#define CASTOR_ARENA_LOAN_H

#include "arena.h"
#include "extent.h"

bool loan_covers(uint32_t page);

/* A free extent for so many pages; 0: none, or none is wanted. */
extent_id loan_find(uint32_t pages);
/* The block was just made of an extent that loan_find has returned. */
void loan_taken(extent_id block);
/* The pages were made elsewhere: there was no room on the loans for them. */
void loan_missed(uint32_t pages);
/* Frees a block where loan_covers. */
void loan_put(extent_id block);
/* A lent block gets pages of its own. CASTOR_ERR_MEMORY: it may still lie on the loan. */
castor_status loan_move_out(extent_id block);

/* Pages of lent blocks; and those that the rest of the round is expected to need besides. */
uint32_t loan_used_pages(void);
uint64_t loan_moved_pages(void); /* of blocks that were moved out, ever */
uint32_t loan_expected_pages(void);
bool loan_open(void);

/* Before a fork: no block shares pages with anybody. In the child: loans are over. */
void loan_fork_prepare(void);
void loan_fork_child(void);

/* Functions of arena.h, without the lock. */
castor_status loans_add(arena_loan *terms, uint32_t count, uint32_t page);
void loan_offer(uint32_t id);
castor_status loan_recall(uint32_t id);
void loan_end(uint32_t id);

bool loan_check(void);

#endif
