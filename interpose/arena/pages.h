/* Pages of private and shared mappings.
 *
 * Vocabulary
 *   view     a private (copy-on-write) mapping of a range of a store file; what the script's tensors use
 *   alias    the shared mapping of the same range; what owners and kernels write
 *   edited   a page of a view that this process wrote: it is its own copy and no longer the store's page
 */
#ifndef CASTOR_ARENA_PAGES_H
#define CASTOR_ARENA_PAGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/status.h"

#define PAGE_BYTES 4096ul

#ifndef MADV_POPULATE_WRITE /* Linux 5.14 */
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_DONTNEED_LOCKED /* Linux 5.18 */
#define MADV_DONTNEED_LOCKED 24
#endif

static inline size_t pages_round(size_t bytes) {
    return (bytes + PAGE_BYTES - 1) & ~(PAGE_BYTES - 1);
}

/* Whether a tensor of so many bytes has whole pages of its own. A smaller one lies beside others, and is copied. */
static inline bool pages_own(size_t bytes) {
    return bytes >= PAGE_BYTES;
}

/* A maximal run of edited pages. */
typedef struct page_run {
    char *start;
    size_t bytes;
} page_run;

/* Finds the first run of edited pages in [start, start + bytes). false: there is none. `start` and `bytes` are
 * multiples of PAGE_BYTES. Where the kernel does not tell, the whole range counts as edited. */
bool pages_edited_next(char *start, size_t bytes, page_run *out);

/* Whether the kernel tells; asks for it where it has not yet been asked in this process. */
bool pages_told(void);
/* Whether pages of the store are in this process's page tables in the range. */
bool pages_of_store(char *view, size_t bytes);
/* Takes those pages of a view out of the page tables that are the store's: it shows the same. Nobody edits the view meanwhile. */
void pages_unedited_drop(char *view, size_t bytes);
/* Bytes of edited pages of a view. */
size_t pages_edited_bytes(char *view, size_t bytes);
/* Copies the edited pages of a view to its alias; returns the bytes copied. */
size_t pages_edited_copy(char *view, char *alias, size_t bytes);
/* Lets go of the edited pages of a view: it shows the store's bytes again. After an error it may not. */
castor_status pages_edited_drop(char *view, size_t bytes);
/* The same, for those edited pages alone that hold what the alias holds. */
castor_status pages_edited_drop_equal(char *view, const char *alias, size_t bytes);
/* Makes every page of a view this process's own, so that later writes to the store do not show in it. */
castor_status pages_privatize(char *view, size_t bytes);

/* Maps `bytes` of `fd` at `offset`. `at` NULL: anywhere; else over whatever is mapped there. */
castor_status pages_map_view(int fd, uint64_t offset, size_t bytes, void *at, char **out);
castor_status pages_map_alias(int fd, uint64_t offset, size_t bytes, void *at, char **out);
/* Replaces whatever is mapped in the range by untouched anonymous memory. */
castor_status pages_map_zero(void *at, size_t bytes);

#endif
