/* The wrappers that files.def describes wholly. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/time.h>
#include <sys/xattr.h>
#include <unistd.h>
#include <utime.h>
#include "file_wrappers.h"
#include "hooks/lookup/wrapper.h"

void *files_real_known[FILE_COUNT];

void *files_real_slow(file_id id) {
    static const char *const symbols[FILE_COUNT] = {
#define FILE_REAL(symbol) #symbol,
#include "files.def"
    };
    int saved_errno = errno;
    void *real = loader_symbol(RTLD_NEXT, symbols[id]);
    __atomic_store_n(&files_real_known[id], real, __ATOMIC_RELAXED);
    errno = saved_errno;
    return real;
}

/* Another definition stands in for a function that this libc does not have: nobody was linked against it. */
#define FILE_CALL(result, failure, symbol, parameters, arguments, folder, intent)                            \
    typedef result symbol##_type parameters;                                                                 \
    static __attribute__((noinline)) result symbol##_diverted parameters {                                   \
        char place[FILES_PATH_MAX];                                                                          \
        int wrong = files_use(folder, path, intent, place);                                                  \
        if (wrong < 0)                                                                                       \
            return failure;                                                                                  \
        if (!wrong)                                                                                          \
            path = place;                                                                                    \
        return ((symbol##_type *)files_real(FILE_##symbol))arguments;                                        \
    }                                                                                                        \
    result wrap_##symbol parameters {                                                                        \
        FILES_AWAIT(folder, (intent) == FILES_EXECUTE ? NULL : path, PENDING_FILE);                          \
        return FILES_DIVERTS() ? symbol##_diverted arguments                                                 \
                               : ((symbol##_type *)files_real(FILE_##symbol))arguments;                      \
    }                                                                                                        \
    HOOK_LIBC(symbol);
#include "files.def"
