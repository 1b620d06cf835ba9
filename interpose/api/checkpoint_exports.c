/* The exported functions about checkpoints: thin, over interpose/checkpoint. */
#include "castor.h"

#include <string.h>
#include "checkpoint/hold.h"
#include "checkpoint/save_queue.h"
#include "checkpoint/verify.h"

castor_status castor_checkpoint_new(castor_checkpoint **out) {
    return job_new(out);
}

castor_status castor_checkpoint_file(castor_checkpoint *save, const char *path, uint32_t *number) {
    return job_file_add(save, path, number);
}

castor_status castor_checkpoint_bytes(castor_checkpoint *save, const void *data, uint64_t bytes) {
    return job_bytes_add(save, data, bytes);
}

castor_status castor_checkpoint_memory(castor_checkpoint *save, const void *const *addresses,
                                       const uint64_t *bytes, uint32_t count) {
    castor_status status = CASTOR_OK;
    for (uint32_t i = 0; i < count && status == CASTOR_OK; i++)
        status = job_memory_add(save, addresses[i], bytes[i]);
    return status;
}

castor_status castor_checkpoint_sum(castor_checkpoint *save, const void *text, uint64_t bytes, uint64_t at) {
    return job_sum_add(save, text, bytes, at);
}

castor_status castor_checkpoint_digits(castor_checkpoint *save, uint32_t number) {
    return job_digits_add(save, number);
}

castor_status castor_checkpoint_archive(castor_checkpoint *save, const char *folder, uint64_t alignment) {
    return job_archive_begin(save, folder, alignment);
}

castor_status castor_checkpoint_record(castor_checkpoint *save, const char *name, const void *data,
                                       uint64_t bytes, int copied) {
    return job_record_add(save, name, data, bytes, copied);
}

castor_status castor_checkpoint_archive_end(castor_checkpoint *save, const char *names) {
    return job_archive_end(save, names);
}

castor_status castor_checkpoint_remove(castor_checkpoint *save, const char *path) {
    return job_remove_add(save, path);
}

castor_status castor_checkpoint_write(castor_checkpoint *save) {
    return queue_write(save);
}

castor_status castor_checkpoint_start(castor_checkpoint *save, void *kept, char *path, char *place,
                                      uint64_t *inode) {
    job_partial partial;
    castor_status status = queue_start(save, kept, &partial);
    *inode = status ? 0 : partial.inode;
    if (*inode) {
        memcpy(path, partial.path, sizeof partial.path);
        memcpy(place, partial.place, sizeof partial.place);
    }
    return status;
}

castor_status castor_checkpoint_wait(void) {
    return queue_wait();
}

castor_status castor_checkpoint_check(void) {
    return queue_check();
}

void castor_checkpoint_release_set(const void *later, const void *drop) {
    int (*call)(int (*)(void *), void *);
    void (*release)(void *);
    memcpy(&call, &later, sizeof call);
    memcpy(&release, &drop, sizeof release);
    queue_release_set(call, release);
}

void castor_checkpoint_get(castor_checkpoint_info *out) {
    hold_statistics holds;
    hold_statistics_get(&holds);
    *out = (castor_checkpoint_info){.guarded_bytes = holds.guarded_bytes,
                                    .copied_at_once_bytes = holds.copied_at_once_bytes,
                                    .copied_later_bytes = holds.copied_later_bytes};
    saved_grains_bytes(&out->saved_grains_bytes, &out->saved_grains_peak_bytes);
}

void castor_checkpoint_drop(castor_checkpoint *save) {
    job_drop(save);
}

int castor_checkpoint_failure(const char **path) {
    const failure *failed = job_failure();
    *path = failed->path;
    return failed->error;
}

castor_status castor_checkpoint_checksum(const char *path, uint64_t from, const void *text,
                                         uint64_t text_bytes, uint64_t *out) {
    failure failed = {0};
    return verify_checksum(path, from, text, text_bytes, out, &failed) ? CASTOR_OK
                                                                       : job_error(&failed, "read");
}

castor_status castor_checkpoint_crcs(const char *path, const uint64_t *headers, const uint64_t *bytes,
                                     uint32_t count, uint32_t *crcs) {
    failure failed = {0};
    return verify_records(path, headers, bytes, count, crcs, &failed) ? CASTOR_OK
                                                                      : job_error(&failed, "read");
}
