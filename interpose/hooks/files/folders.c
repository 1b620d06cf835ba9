/* Directory streams, the working directory and realpath. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "file_wrappers.h"

/* libc's headers have names of their own for these parameters. */
/* NOLINTBEGIN(readability-inconsistent-declaration-parameter-name) */

/* ---- streams ---- */

/* What opendir returns for a directory that is visible in several layers, or may be before it is read. libc's own begins with a descriptor and a
 * lock, never with these bytes. */
typedef struct stream {
    uint64_t sign[2];
    files_listing *names;
    int folder;
} stream;

static const uint64_t sign[2] = {0x9d1f6a3bc25e8074u, 0x61b4e07f38ad92c5u};

static stream *stream_of(DIR *dir) {
    return dir && memcmp(dir, sign, sizeof sign) == 0 ? (stream *)dir : NULL;
}

/* `folder`: a descriptor of the directory, which the stream owns from now on. */
static DIR *stream_open(const files_found *found, int folder) {
    stream *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (s == MAP_FAILED)
        return NULL;
    s->names = files_listing_open(found);
    if (!s->names) {
        int reason = errno;
        munmap(s, sizeof *s);
        errno = reason;
        return NULL;
    }
    s->folder = folder;
    memcpy(s->sign, sign, sizeof sign);
    return (DIR *)s;
}

static bool is_merged(const files_found *found) {
    return !found->outside && !found->missing &&
           (found->notes >= 0 || found->visible != 1u << files_layer_count());
}

static __attribute__((noinline)) DIR *opendir_diverted(const char *path) {
    files_found found;
    char place[FILES_PATH_MAX];
    if (files_now == FILES_NOTE)
        return REAL(opendir)(path);
    int wrong = files_find(AT_FDCWD, path, true, &found);
    if (wrong)
        return wrong < 0 ? NULL : REAL(opendir)(path);
    if (!found.outside && found.missing)
        errno = ENOENT;
    if ((!found.outside && found.missing) || files_place_of(&found, place) != 0)
        return NULL;
    if (!is_merged(&found) || !S_ISDIR(found.info.st_mode))
        return REAL(opendir)(place);
    int folder = (int)syscall(SYS_openat, AT_FDCWD, place, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0)
        return NULL;
    DIR *dir = stream_open(&found, folder);
    if (!dir)
        close(folder);
    return dir;
}

DIR *wrap_opendir(const char *path) {
    FILES_AWAIT(AT_FDCWD, path, PENDING_TREE);
    return FILES_DIVERTS() ? opendir_diverted(path) : REAL(opendir)(path);
}
HOOK_LIBC(opendir);

static __attribute__((noinline)) DIR *fdopendir_diverted(int folder) {
    files_found found;
    if (files_now == FILES_NOTE || files_find(folder, ".", true, &found) != 0 || !is_merged(&found))
        return REAL(fdopendir)(folder);
    return stream_open(&found, folder);
}

DIR *wrap_fdopendir(int folder) {
    FILES_AWAIT(folder, ".", PENDING_TREE);
    return FILES_DIVERTS() ? fdopendir_diverted(folder) : REAL(fdopendir)(folder);
}
HOOK_LIBC(fdopendir);

/* Streams may outlive what opened them: what follows looks at each. */
#define STREAM(dir) (__builtin_expect(files_now != FILES_PRIVATE, 1) ? NULL : stream_of(dir))

struct dirent *wrap_readdir(DIR *dir) {
    stream *s = STREAM(dir);
    return s ? files_listing_next(s->names) : REAL(readdir)(dir);
}
HOOK_LIBC(readdir);

struct dirent64 *wrap_readdir64(DIR *dir) {
    stream *s = STREAM(dir);
    return s ? files_listing_next(s->names) : REAL(readdir64)(dir);
}
HOOK_LIBC(readdir64);

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
static int copy_next(stream *s, struct dirent64 *entry, struct dirent64 **out) {
    struct dirent64 *next = files_listing_next(s->names);
    *out = next ? memcpy(entry, next, next->d_reclen < sizeof *entry ? next->d_reclen : sizeof *entry) : NULL;
    return 0;
}

int wrap_readdir_r(DIR *dir, struct dirent *entry, struct dirent **out) {
    stream *s = STREAM(dir);
    return s ? copy_next(s, (struct dirent64 *)entry, (struct dirent64 **)out)
             : REAL(readdir_r)(dir, entry, out);
}
HOOK_LIBC(readdir_r);

int wrap_readdir64_r(DIR *dir, struct dirent64 *entry, struct dirent64 **out) {
    stream *s = STREAM(dir);
    return s ? copy_next(s, entry, out) : REAL(readdir64_r)(dir, entry, out);
}
HOOK_LIBC(readdir64_r);

int wrap_closedir(DIR *dir) {
    stream *s = STREAM(dir);
    if (!s)
        return REAL(closedir)(dir);
    int folder = s->folder;
    files_listing_close(s->names);
    munmap(s, sizeof *s);
    return close(folder);
}
HOOK_LIBC(closedir);

void wrap_rewinddir(DIR *dir) {
    stream *s = STREAM(dir);
    if (!s) {
        REAL(rewinddir)(dir);
        return;
    }
    /* As it is now: a tree that is being removed is looked at again. */
    files_found found;
    files_listing *names = files_find(s->folder, ".", true, &found) == 0 ? files_listing_open(&found) : NULL;
    if (names) {
        files_listing_close(s->names);
        s->names = names;
    } else {
        files_listing_seek(s->names, 0);
    }
}
HOOK_LIBC(rewinddir);

void wrap_seekdir(DIR *dir, long position) {
    stream *s = STREAM(dir);
    if (s)
        files_listing_seek(s->names, (size_t)position);
    else
        REAL(seekdir)(dir, position);
}
HOOK_LIBC(seekdir);

long wrap_telldir(DIR *dir) {
    stream *s = STREAM(dir);
    return s ? (long)files_listing_position(s->names) : REAL(telldir)(dir);
}
HOOK_LIBC(telldir);

int wrap_dirfd(DIR *dir) {
    stream *s = STREAM(dir);
    return s ? s->folder : REAL(dirfd)(dir);
}
HOOK_LIBC(dirfd);

/* ---- the working directory and whole paths ---- */

/* As getcwd: `out` NULL is allocated. */
static char *give(const char *path, char *out, size_t size) {
    size_t length = strlen(path) + 1;
    if (!out)
        return size && size < length ? (errno = ERANGE, NULL)
                                     : memcpy(malloc(size ? size : length), path, length);
    if (size < length) {
        errno = size ? ERANGE : EINVAL;
        return NULL;
    }
    return memcpy(out, path, length);
}

static __attribute__((noinline)) char *getcwd_diverted(char *out, size_t size) {
    char path[FILES_PATH_MAX];
    if (syscall(SYS_getcwd, path, sizeof path) < 0)
        return NULL;
    if (path[0] != '/') { /* unreachable */
        errno = ENOENT;
        return NULL;
    }
    files_path_of_place(path);
    return give(path, out, size);
}

char *wrap_getcwd(char *out, size_t size) {
    return FILES_DIVERTS() ? getcwd_diverted(out, size) : REAL(getcwd)(out, size);
}
HOOK_LIBC(getcwd);

typedef char *getcwd_checked(char *, size_t, size_t);
char *wrap___getcwd_chk(char *out, size_t size, size_t room) {
    return FILES_DIVERTS() ? getcwd_diverted(out, size < room ? size : room)
                           : ((getcwd_checked *)files_real(FILE___getcwd_chk))(out, size, room);
}
HOOK_LIBC(__getcwd_chk);

char *wrap_get_current_dir_name(void) {
    return FILES_DIVERTS() ? getcwd_diverted(NULL, 0) : REAL(get_current_dir_name)();
}
HOOK_LIBC(get_current_dir_name);

static __attribute__((noinline)) char *realpath_diverted(const char *path, char *out) {
    files_found found;
    if (files_now == FILES_NOTE)
        return REAL(realpath)(path, out);
    int wrong = files_find(AT_FDCWD, path, true, &found);
    if (wrong)
        return wrong < 0 ? NULL : REAL(realpath)(path, out);
    if (found.outside)
        return REAL(realpath)(found.path, out);
    if (found.missing) {
        errno = ENOENT;
        return NULL;
    }
    return give(found.path, out, out ? PATH_MAX : 0);
}

char *wrap_realpath(const char *path, char *out) {
    return FILES_DIVERTS() ? realpath_diverted(path, out) : REAL(realpath)(path, out);
}
HOOK_LIBC(realpath);

typedef char *realpath_checked(const char *, char *, size_t);
char *wrap___realpath_chk(const char *path, char *out, size_t room) {
    return FILES_DIVERTS() ? realpath_diverted(path, out)
                           : ((realpath_checked *)files_real(FILE___realpath_chk))(path, out, room);
}
HOOK_LIBC(__realpath_chk);

char *wrap_canonicalize_file_name(const char *path) {
    return FILES_DIVERTS() ? realpath_diverted(path, NULL) : REAL(canonicalize_file_name)(path);
}
HOOK_LIBC(canonicalize_file_name);
/* NOLINTEND(readability-inconsistent-declaration-parameter-name) */
