/* A save: files that are written together, in order, and appear together.
 *
 * Vocabulary
 *   piece     some bytes of a file: a copy that the job owns, memory of the caller's, or something that is known only when earlier
 *             bytes are written (a checksum, a CRC, an archive's directory)
 *   index     a file with checksums of earlier files in it
 *
 * Invariants
 *   - every file is durable before any gets its name. Files that are no index get theirs first, and these names are durable before
 *     an index gets its: whoever reads an index finds the files that it names
 *   - a failure before that leaves all names as they were, and no temporary file. If only the directory cannot be made durable after
 *     an index has replaced another one, both the index and its files stay
 *   - files are removed when everything else is durable */
#ifndef CASTOR_CHECKPOINT_JOB_H
#define CASTOR_CHECKPOINT_JOB_H

#include "base/status.h"
#include "stream.h"

typedef struct job job;

castor_status job_new(job **out);
/* Each takes copies of what it is given, but for memory. They add to the file that was added last. */
castor_status job_file_add(job *j, const char *path, uint32_t *number);
castor_status job_bytes_add(job *j, const void *data, size_t bytes);
/* Must stay as it is until the job has been written, or until job_hold; the memory must exist until the job has been freed. */
castor_status job_memory_add(job *j, const void *data, size_t bytes);
/* The checksum of this text and of what is added from now on comes into the file itself, over the 16 bytes at `at`. */
castor_status job_sum_add(job *j, const void *text, size_t bytes, uint64_t at);
/* The checksum of an earlier file as 16 hexadecimal digits: the last file becomes an index. */
castor_status job_digits_add(job *j, uint32_t number);
/* The file is an archive. Records follow (`data` is copied if `copied`), then its end. */
castor_status job_archive_begin(job *j, const char *folder, uint64_t alignment);
castor_status job_record_add(job *j, const char *name, const void *data, uint64_t bytes, bool copied);
castor_status job_archive_end(job *j, const char *names_hash);
castor_status job_remove_add(job *j, const char *path);

/* The temporary file of the one that appears last. While it has this name, the job is being written; after that the last file is
 * this one, or was replaced since, or the job has failed. Other processes, on other nodes too, see that. */
typedef struct job_partial {
    char path[PATH_MAX], place[PATH_MAX]; /* its name now, and then */
    uint64_t inode;
} job_partial;

/* From now on the job's memory may change: it is written as it is now (hold.h). Begins the file that appears last, so that a
 * directory that cannot be written to is found now. */
castor_status job_hold(job *j, job_partial *partial);
/* Writes it. job_drop follows. */
bool job_write(job *j, failure *failed, const char **doing);
void job_drop(job *j);

/* In a forked child, whose parent writes the job. */
void job_fork_child(job *j);

/* The places of its files, by number; NULL behind the last. */
const char *job_place(const job *j, uint32_t number);

/* Of this thread's last status that was an error. error 0: no system call's. */
const failure *job_failure(void);
castor_status job_error(const failure *failed, const char *doing);

#endif
