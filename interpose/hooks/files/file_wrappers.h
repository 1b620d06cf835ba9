/* The wrappers of libc's file functions. Private to hooks/.
 *
 * They are called in every process that has the library, from its first instruction on: in signal handlers, after vfork, and
 * by callers that hold locks. If nothing is diverted, a wrapper tests a flag and calls the real function. */
#ifndef CASTOR_HOOKS_FILES_FILE_WRAPPERS_H
#define CASTOR_HOOKS_FILES_FILE_WRAPPERS_H

#include "checkpoint/pending.h"
#include "files/overlay.h"
#include "hooks/lookup/wrapper.h"

typedef enum file_id {
#define FILE_REAL(symbol) FILE_##symbol,
#include "files.def"
    FILE_COUNT
} file_id;

/* The next definition after ours; NULL: libc has none. */
void *files_real_slow(file_id id);
extern void *files_real_known[FILE_COUNT];

static inline void *files_real(file_id id) {
    void *real = __atomic_load_n(&files_real_known[id], __ATOMIC_RELAXED);
    return __builtin_expect(real != NULL, 1) ? real : files_real_slow(id);
}

/* The library's own calls are never diverted: its code lies between these addresses. */
extern const char castor_image[] __asm__("__ehdr_start") __attribute__((visibility("hidden")));
extern const char castor_image_end[] __asm__("_DYNAMIC") __attribute__((visibility("hidden")));

static inline bool files_is_ours(const void *caller) {
    return (uintptr_t)caller - (uintptr_t)castor_image <
           (uintptr_t)castor_image_end - (uintptr_t)castor_image;
}

/* In a wrapper: whether this call may have to be diverted. */
#define FILES_DIVERTS()                                                                                      \
    (__builtin_expect(__atomic_load_n(&files_now, __ATOMIC_RELAXED) != FILES_OFF, 0) &&                      \
     !files_is_ours(__builtin_return_address(0)))

/* In a wrapper: waits until a save in the background has written what has this name (checkpoint/pending.h). NULL: all that there is. */
#define FILES_AWAIT(folder, path, use)                                                                       \
    do {                                                                                                     \
        if (__builtin_expect(__atomic_load_n(&pending_now, __ATOMIC_RELAXED) != NULL, 0) &&                  \
            !files_is_ours(__builtin_return_address(0)))                                                     \
            pending_await(folder, path, use);                                                                \
    } while (0)

#define REAL(symbol) ((__typeof__(symbol) *)files_real(FILE_##symbol))

#endif
