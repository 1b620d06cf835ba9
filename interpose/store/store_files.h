/* The files that a node store is made of: its control block, and the chunks of each kind.
 *
 * Chunk files are in memory; where chunks may be on disk alone, they are unlinked files in a folder. */
#ifndef CASTOR_STORE_FILES_H
#define CASTOR_STORE_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/status.h"
#include "placement/chunk.h"

#define STORE_FILES (1 + CHUNK_KIND_COUNT)

/* Where chunk files lie; "": in memory. `places`: chunks may be on disk alone. */
const char *store_files_folder(const char *offload_dir, bool places);
/* How large one rank's part of the states' file may be, and the whole file of parameters or of gradients. */
uint64_t store_files_part_bytes(const char *folder);

/* Rank 0 calls them. On an error no file stays open. */
castor_status store_files_make(int world, uint64_t control_bytes, const char *folder, int fds[STORE_FILES]);
castor_status store_files_make_chunks(int world, const char *folder, int fds[CHUNK_KIND_COUNT]);

#endif
