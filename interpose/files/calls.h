/* System calls by number. The library's own file operations must not pass through its wrappers of libc's functions. They may
 * run before the wrappers have found the real functions, after vfork, and in signal handlers. As libc's functions they return
 * -1 with errno on failure. Paths are absolute. */
#ifndef CASTOR_FILES_CALLS_H
#define CASTOR_FILES_CALLS_H

#include <fcntl.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#ifndef RENAME_NOREPLACE
#define RENAME_NOREPLACE 1
#endif

/* An entry as getdents64 returns it. */
typedef struct call_entry {
    uint64_t inode;
    int64_t offset;
    uint16_t size;
    uint8_t type;
    char name[];
} call_entry;

static inline int call_open(const char *path, int flags, mode_t mode) {
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags | O_LARGEFILE, mode);
}
static inline int call_lstat(const char *path, struct stat *out) {
    return (int)syscall(SYS_newfstatat, AT_FDCWD, path, out, AT_SYMLINK_NOFOLLOW);
}
static inline int call_fstat(int file, struct stat *out) {
    return (int)syscall(SYS_newfstatat, file, "", out, AT_EMPTY_PATH);
}
static inline ssize_t call_readlink(const char *path, char *out, size_t size) {
    return syscall(SYS_readlinkat, AT_FDCWD, path, out, size);
}
static inline int call_access(const char *path, int mode) {
    return (int)syscall(SYS_faccessat, AT_FDCWD, path, mode);
}
static inline int call_mkdir(const char *path, mode_t mode) {
    return (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
}
static inline int call_unlink(const char *path, int flags) {
    return (int)syscall(SYS_unlinkat, AT_FDCWD, path, flags);
}
static inline int call_symlink(const char *target, const char *path) {
    return (int)syscall(SYS_symlinkat, target, AT_FDCWD, path);
}
static inline int call_link(const char *from, const char *to, int flags) {
    return (int)syscall(SYS_linkat, AT_FDCWD, from, AT_FDCWD, to, flags);
}
static inline int call_rename(const char *from, const char *to, unsigned flags) {
    return (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, flags);
}
static inline long call_entries(int folder, void *out, size_t size) {
    return syscall(SYS_getdents64, folder, out, size);
}

#endif
