/* open, fopen, mkdir, remove, rename, link and mkstemp, with their relatives. */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "file_wrappers.h"

/* libc's headers have names of their own for these parameters. */
/* NOLINTBEGIN(readability-inconsistent-declaration-parameter-name) */

#define NEEDS_MODE(flags) ((flags)&O_CREAT || ((flags)&O_TMPFILE) == O_TMPFILE)

/* A directory that is opened may be about to be listed. */
#define OPEN_USE(flags) ((flags)&O_DIRECTORY ? PENDING_TREE : PENDING_FILE)

/* ---- open ---- */

typedef int open_function(const char *, int, ...);
typedef int openat_function(int, const char *, int, ...);

static __attribute__((noinline)) int open_diverted(file_id id, int folder, const char *path, int flags,
                                                   mode_t mode) {
    char place[FILES_PATH_MAX];
    int wrong = files_open(folder, path, flags, mode, place);
    if (wrong < 0)
        return -1;
    return ((openat_function *)files_real(id))(folder, wrong ? path : place, flags, mode);
}

#define OPEN(symbol, id)                                                                                     \
    int wrap_##symbol(const char *path, int flags, ...) {                                                    \
        va_list rest;                                                                                        \
        va_start(rest, flags);                                                                               \
        mode_t mode = NEEDS_MODE(flags) ? va_arg(rest, mode_t) : 0;                                          \
        va_end(rest);                                                                                        \
        FILES_AWAIT(AT_FDCWD, path, OPEN_USE(flags));                                                        \
        return FILES_DIVERTS() ? open_diverted(id, AT_FDCWD, path, flags, mode)                              \
                               : ((open_function *)files_real(FILE_##symbol))(path, flags, mode);            \
    }                                                                                                        \
    HOOK_LIBC(symbol);
OPEN(open, FILE_openat)
OPEN(open64, FILE_openat64)

#define OPENAT(symbol)                                                                                       \
    int wrap_##symbol(int folder, const char *path, int flags, ...) {                                        \
        va_list rest;                                                                                        \
        va_start(rest, flags);                                                                               \
        mode_t mode = NEEDS_MODE(flags) ? va_arg(rest, mode_t) : 0;                                          \
        va_end(rest);                                                                                        \
        FILES_AWAIT(folder, path, OPEN_USE(flags));                                                          \
        return FILES_DIVERTS() ? open_diverted(FILE_##symbol, folder, path, flags, mode)                     \
                               : ((openat_function *)files_real(FILE_##symbol))(folder, path, flags, mode);  \
    }                                                                                                        \
    HOOK_LIBC(symbol);
OPENAT(openat)
OPENAT(openat64)

#define CREAT(symbol, id)                                                                                    \
    int wrap_##symbol(const char *path, mode_t mode) {                                                       \
        FILES_AWAIT(AT_FDCWD, path, PENDING_FILE);                                                           \
        return FILES_DIVERTS() ? open_diverted(id, AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode)       \
                               : REAL(symbol)(path, mode);                                                   \
    }                                                                                                        \
    HOOK_LIBC(symbol);
CREAT(creat, FILE_openat)
CREAT(creat64, FILE_openat64)

/* What <fcntl.h> makes of open without a mode, in programs that are compiled with _FORTIFY_SOURCE. */
#define OWN_REAL(symbol) ((__typeof__(wrap_##symbol) *)files_real(FILE_##symbol))
#define OPEN_CHECKED(symbol, id)                                                                             \
    int wrap_##symbol(const char *path, int flags) {                                                         \
        FILES_AWAIT(AT_FDCWD, path, OPEN_USE(flags));                                                        \
        return FILES_DIVERTS() ? open_diverted(id, AT_FDCWD, path, flags, 0)                                 \
                               : OWN_REAL(symbol)(path, flags);                                              \
    }                                                                                                        \
    HOOK_LIBC(symbol);
OPEN_CHECKED(__open_2, FILE_openat)
OPEN_CHECKED(__open64_2, FILE_openat64)
#define OPENAT_CHECKED(symbol, id)                                                                           \
    int wrap_##symbol(int folder, const char *path, int flags) {                                             \
        FILES_AWAIT(folder, path, OPEN_USE(flags));                                                          \
        return FILES_DIVERTS() ? open_diverted(id, folder, path, flags, 0)                                   \
                               : OWN_REAL(symbol)(folder, path, flags);                                      \
    }                                                                                                        \
    HOOK_LIBC(symbol);
OPENAT_CHECKED(__openat_2, FILE_openat)
OPENAT_CHECKED(__openat64_2, FILE_openat64)

/* libc's fopen does not pass through its open. */
static int stream_use(const char *path, const char *mode, char *place) {
    int flags = mode[0] == 'r' ? 0 : mode[0] == 'w' ? O_CREAT | O_TRUNC : O_CREAT | O_APPEND;
    bool both = false;
    for (const char *at = mode; *at && *at != ','; at++) {
        both = both || *at == '+';
        flags |= *at == 'x' ? O_EXCL : 0;
    }
    return files_open(AT_FDCWD, path,
                      flags | (both             ? O_RDWR
                               : mode[0] == 'r' ? O_RDONLY
                                                : O_WRONLY),
                      0666, place);
}

#define FOPEN(symbol)                                                                                        \
    static __attribute__((noinline)) FILE *symbol##_diverted(const char *path, const char *mode) {           \
        char place[FILES_PATH_MAX];                                                                          \
        int wrong = stream_use(path, mode, place);                                                           \
        return wrong < 0 ? NULL : REAL(symbol)(wrong ? path : place, mode);                                  \
    }                                                                                                        \
    FILE *wrap_##symbol(const char *path, const char *mode) {                                                \
        FILES_AWAIT(AT_FDCWD, path, PENDING_FILE);                                                           \
        return FILES_DIVERTS() ? symbol##_diverted(path, mode) : REAL(symbol)(path, mode);                   \
    }                                                                                                        \
    HOOK_LIBC(symbol);
FOPEN(fopen)
FOPEN(fopen64)

#define FREOPEN(symbol)                                                                                      \
    static __attribute__((noinline))                                                                         \
    FILE *symbol##_diverted(const char *path, const char *mode, FILE *file) {                                \
        char place[FILES_PATH_MAX];                                                                          \
        int wrong = path ? stream_use(path, mode, place) : 1;                                                \
        if (wrong < 0) { /* it closes the stream in any case */                                              \
            int reason = errno;                                                                              \
            fclose(file);                                                                                    \
            errno = reason;                                                                                  \
            return NULL;                                                                                     \
        }                                                                                                    \
        return REAL(symbol)(wrong ? path : place, mode, file);                                               \
    }                                                                                                        \
    FILE *wrap_##symbol(const char *path, const char *mode, FILE *file) {                                    \
        if (path)                                                                                            \
            FILES_AWAIT(AT_FDCWD, path, PENDING_FILE);                                                       \
        return FILES_DIVERTS() ? symbol##_diverted(path, mode, file) : REAL(symbol)(path, mode, file);       \
    }                                                                                                        \
    HOOK_LIBC(symbol);
FREOPEN(freopen)
FREOPEN(freopen64)

/* ---- names ---- */

#define TWO_AWAIT(from_folder, from, to_folder, to)                                                          \
    FILES_AWAIT(from_folder, from, PENDING_TREE);                                                            \
    FILES_AWAIT(to_folder, to, PENDING_TREE)

/* A whole call that files/ has done, or 1: the real one. */
#define WHOLE(symbol, parameters, arguments, done, awaited)                                                  \
    int wrap_##symbol parameters {                                                                           \
        awaited;                                                                                             \
        int result = FILES_DIVERTS() ? (done) : 1;                                                           \
        return result == 1 ? REAL(symbol) arguments : result;                                                \
    }                                                                                                        \
    HOOK_LIBC(symbol);
WHOLE(mkdir, (const char *path, mode_t mode), (path, mode), files_mkdir(AT_FDCWD, path, mode),
      FILES_AWAIT(AT_FDCWD, path, PENDING_FILE))
WHOLE(mkdirat, (int folder, const char *path, mode_t mode), (folder, path, mode),
      files_mkdir(folder, path, mode), FILES_AWAIT(folder, path, PENDING_FILE))
WHOLE(rmdir, (const char *path), (path), files_remove(AT_FDCWD, path, AT_REMOVEDIR),
      FILES_AWAIT(AT_FDCWD, path, PENDING_TREE))
WHOLE(unlink, (const char *path), (path), files_remove(AT_FDCWD, path, 0),
      FILES_AWAIT(AT_FDCWD, path, PENDING_FILE))
WHOLE(unlinkat, (int folder, const char *path, int flags), (folder, path, flags),
      files_remove(folder, path, flags), FILES_AWAIT(folder, path, PENDING_TREE))
WHOLE(rename, (const char *from, const char *to), (from, to), files_rename(AT_FDCWD, from, AT_FDCWD, to, 0),
      TWO_AWAIT(AT_FDCWD, from, AT_FDCWD, to))
WHOLE(renameat, (int from_folder, const char *from, int to_folder, const char *to),
      (from_folder, from, to_folder, to), files_rename(from_folder, from, to_folder, to, 0),
      TWO_AWAIT(from_folder, from, to_folder, to))
WHOLE(renameat2, (int from_folder, const char *from, int to_folder, const char *to, unsigned flags),
      (from_folder, from, to_folder, to, flags), files_rename(from_folder, from, to_folder, to, flags),
      TWO_AWAIT(from_folder, from, to_folder, to))
WHOLE(link, (const char *from, const char *to), (from, to), files_link(AT_FDCWD, from, AT_FDCWD, to, 0),
      TWO_AWAIT(AT_FDCWD, from, AT_FDCWD, to))
WHOLE(linkat, (int from_folder, const char *from, int to_folder, const char *to, int flags),
      (from_folder, from, to_folder, to, flags), files_link(from_folder, from, to_folder, to, flags),
      TWO_AWAIT(from_folder, from, to_folder, to))

static int remove_diverted(const char *path) {
    int done = files_remove(AT_FDCWD, path, 0);
    return done < 0 && errno == EISDIR ? files_remove(AT_FDCWD, path, AT_REMOVEDIR) : done;
}
WHOLE(remove, (const char *path), (path), remove_diverted(path), FILES_AWAIT(AT_FDCWD, path, PENDING_TREE))

/* ---- mkstemp ---- */

/* `made` runs the real function on a template. Where the name is put somewhere else, the letters that were drawn come back. */
typedef struct temporary {
    file_id id;
    int suffix, flags, file;
    char *folder; /* of mkdtemp */
} temporary;

static bool temporary_make(temporary *t, char *template) {
    void *real = files_real(t->id);
    switch (t->id) {
    case FILE_mkdtemp:
        t->folder = ((char *(*)(char *))real)(template);
        return t->folder;
    case FILE_mkostemp:
    case FILE_mkostemp64:
        t->file = ((int (*)(char *, int))real)(template, t->flags);
        break;
    case FILE_mkstemps:
    case FILE_mkstemps64:
        t->file = ((int (*)(char *, int))real)(template, t->suffix);
        break;
    case FILE_mkostemps:
    case FILE_mkostemps64:
        t->file = ((int (*)(char *, int, int))real)(template, t->suffix, t->flags);
        break;
    default:
        t->file = ((int (*)(char *))real)(template);
    }
    return t->file >= 0;
}

static bool temporary_divert(temporary *t, char *template) {
    files_found found;
    char place[FILES_PATH_MAX];
    size_t length = strlen(template), drawn = (size_t)t->suffix + 6;
    int wrong = files_find(AT_FDCWD, template, false, &found);
    if (wrong < 0)
        return false;
    if (wrong || found.outside || length < drawn)
        return temporary_make(t, template);
    bool stays = files_now == FILES_NOTE || files_is_temporary(found.path, 0, 0);
    if (stays) {
        bool made = temporary_make(t, template);
        if (made && files_find(AT_FDCWD, template, false, &found) == 0 &&
            (files_now != FILES_NOTE || !files_is_temporary(found.path, 0, 0) || t->folder))
            files_mark(files_now == FILES_NOTE ? FILES_BEFORE : 0, found.path,
                       files_now == FILES_NOTE ? "gone" : "own");
        return made;
    }
    if (files_may_change(&found) != 0 || files_make_parents(0, found.path) != 0 ||
        files_place_in(0, found.path, place) != 0 || !temporary_make(t, place))
        return false;
    memcpy(template + length - drawn, place + strlen(place) - drawn, drawn);
    t->folder = t->folder ? template : NULL;
    return true;
}

#define TEMPORARY(result, symbol, parameters, arguments, suffix_, flags_, failure, made)                     \
    result wrap_##symbol parameters {                                                                        \
        temporary t = {.id = FILE_##symbol, .suffix = suffix_, .flags = flags_};                             \
        if (!FILES_DIVERTS())                                                                                \
            return REAL(symbol) arguments;                                                                   \
        return temporary_divert(&t, template) ? t.made : failure;                                            \
    }                                                                                                        \
    HOOK_LIBC(symbol);
TEMPORARY(int, mkstemp, (char *template), (template), 0, 0, -1, file)
TEMPORARY(int, mkstemp64, (char *template), (template), 0, 0, -1, file)
TEMPORARY(int, mkostemp, (char *template, int flags), (template, flags), 0, flags, -1, file)
TEMPORARY(int, mkostemp64, (char *template, int flags), (template, flags), 0, flags, -1, file)
TEMPORARY(int, mkstemps, (char *template, int suffix), (template, suffix), suffix, 0, -1, file)
TEMPORARY(int, mkstemps64, (char *template, int suffix), (template, suffix), suffix, 0, -1, file)
TEMPORARY(int, mkostemps, (char *template, int suffix, int flags), (template, suffix, flags), suffix, flags,
          -1, file)
TEMPORARY(int, mkostemps64, (char *template, int suffix, int flags), (template, suffix, flags), suffix, flags,
          -1, file)
TEMPORARY(char *, mkdtemp, (char *template), (template), 0, 0, NULL, folder)
/* NOLINTEND(readability-inconsistent-declaration-parameter-name) */
