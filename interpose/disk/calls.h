/* The system calls under the disk queue, and how much of a file is in memory.
 *
 * Each returns 0 (or a number of bytes), else a negative errno. Tests replace them by calls that fail. The
 * comment of each call says what every implementation must do. */
#ifndef CASTOR_DISK_CALLS_H
#define CASTOR_DISK_CALLS_H

#include <stdbool.h>
#include <stdint.h>
#include "base/status.h"

/* How a loaded range is put into this process's page tables, so that the thread that uses it next does not fault. DISK_MAP_WRITE
 * also marks every page as written: for ranges that are about to be written throughout. */
typedef enum disk_map { DISK_MAP_NONE, DISK_MAP_READ, DISK_MAP_WRITE } disk_map;

typedef struct disk_calls {
    /* Takes the alias's pages out of this process's page tables; no byte is lost, since the mapping is shared. */
    int (*unmap)(void *context, char *alias, uint64_t bytes);
    /* Returns when every byte of the range that was written before the call is on disk or an error is known. */
    int (*write_back)(void *context, int fd, uint64_t offset, uint64_t bytes);
    /* Gives up the memory of the range's pages that are clean and that no page table holds; leaves all others. */
    int (*drop)(void *context, int fd, uint64_t offset, uint64_t bytes);
    /* Reads the range's begin into memory; returns how much of it, 0 where the file ends. */
    int64_t (*read_ahead)(void *context, int fd, uint64_t offset, uint64_t bytes);
    int (*map)(void *context, char *alias, uint64_t bytes, disk_map how);
    int (*resident)(void *context, int fd, uint64_t offset, uint64_t bytes, uint64_t *out);
    void *context;
} disk_calls;

extern const disk_calls disk_calls_system;

/* Bytes of the file's range that are in memory, whoever loaded them. cachestat(2) where there is one (Linux 6.5), which takes
 * up to 8 microseconds for each MiB that is there; else mincore on `alias`, a mapping of the range, or on a mapping for the call where
 * it is NULL. From any thread. */
castor_status disk_resident(int fd, uint64_t offset, uint64_t bytes, const char *alias, uint64_t *out);

#endif
