#include "store_files.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>
#include "base/error.h"
#include "base/log.h"
#include "placement/chunk.h"

#define PART_BYTES          (1ull << 40) /* of memory files; sparse */
#define PART_BYTES_DISK     (1ull << 37) /* file systems limit a file to 16 TiB */
#define OFFLOAD_DIR_DEFAULT "/var/tmp"   /* for large files, and no part of memory */

#ifndef F_ADD_SEALS
#define F_ADD_SEALS   1033
#define F_SEAL_SEAL   1
#define F_SEAL_SHRINK 2
#define F_SEAL_GROW   4
#endif

const char *store_files_folder(const char *offload_dir, bool places) {
    return *offload_dir || !places ? offload_dir : OFFLOAD_DIR_DEFAULT;
}

uint64_t store_files_part_bytes(const char *folder) {
    return *folder ? PART_BYTES_DISK : PART_BYTES;
}

static int memory_file(const char *name, uint64_t bytes) {
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return -1;
    if (ftruncate(fd, (off_t)bytes) != 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

static int disk_file(const char *directory, uint64_t bytes) {
    int fd = open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd >= 0 && ftruncate(fd, (off_t)bytes) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

static castor_status no_memory_files(void) {
    const char *advice = "see the kernel's log (dmesg)";
    if (errno == EFBIG)
        advice = "raise the limit on file size (ulimit -f)";
    else if (errno == EMFILE || errno == ENFILE)
        advice = "raise the limit on open files (ulimit -n)";
    else if (errno == EPERM || errno == EACCES || errno == ENOSYS)
        advice = "the sandbox or container (seccomp) forbids memfd_create, which Castor needs: allow it";
    else if (errno == ENOMEM || errno == ENOSPC)
        advice = "memory is out, or a limit on it (ulimit -v, a cgroup) is too low";
    return error_set(CASTOR_ERR_SYSTEM, "cannot make the store's memory files (errno %d): %s", errno, advice);
}

/* Files there are memory that counts like any other: what lies "on disk" bounds nothing. */
static void say_if_memory(const char *folder, int fd) {
    struct statfs system;
    if (fstatfs(fd, &system) == 0 && (system.f_type == TMPFS_MAGIC || system.f_type == RAMFS_MAGIC))
        LOG_W("CASTOR_OFFLOAD_DIR=%s is on a file system in memory (tmpfs): what lies there saves no memory; "
              "name a directory on a disk",
              folder);
}

castor_status store_files_make_chunks(int world, const char *folder, int fds[CHUNK_KIND_COUNT]) {
    static const char *const names[CHUNK_KIND_COUNT] = {"castor-param", "castor-grad", "castor-optim"};
    uint64_t part_bytes = store_files_part_bytes(folder);
    for (int kind = 0; kind < CHUNK_KIND_COUNT; kind++) {
        uint64_t bytes = kind == CHUNK_OPTIM ? part_bytes * (uint64_t)world : part_bytes;
        fds[kind] = *folder ? disk_file(folder, bytes) : memory_file(names[kind], bytes);
        if (fds[kind] >= 0)
            continue;
        castor_status status =
            *folder
                ? error_set(CASTOR_ERR_SYSTEM,
                            "cannot make a chunk file in CASTOR_OFFLOAD_DIR=%s (errno %d): name a writable "
                            "directory "
                            "of a local file system that has O_TMPFILE (ext4, xfs, btrfs, tmpfs)",
                            folder, errno)
                : no_memory_files();
        while (kind-- > 0) {
            close(fds[kind]);
            fds[kind] = -1;
        }
        return status;
    }
    if (*folder)
        say_if_memory(folder, fds[0]);
    return CASTOR_OK;
}

castor_status store_files_make(int world, uint64_t control_bytes, const char *folder, int fds[STORE_FILES]) {
    fds[0] = memory_file("castor-control", control_bytes);
    if (fds[0] < 0)
        return no_memory_files();
    castor_status status = store_files_make_chunks(world, folder, fds + 1);
    if (status) {
        close(fds[0]);
        fds[0] = -1;
    }
    return status;
}
