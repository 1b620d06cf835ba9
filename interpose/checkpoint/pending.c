#include "pending.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "base/log.h"

#define PLACES      256
#define WAIT_NS     100000000 /* between two looks whether the process that writes still lives */
#define PROC_FD_MAX 40

/* An entry is written before `used` is set. The process that made the list alone changes it. */
struct pending_list {
    uint32_t count, changes; /* `changes` is a futex */
    pid_t writer;
    struct {
        uint32_t used;
        char path[PATH_MAX];
    } places[PLACES];
};

pending_list *pending_now;

/* Called under the queue's lock. A forked child that saves for itself gets a list of its own. */
bool pending_add(const char *place) {
    pending_list *list = pending_now;
    size_t length = strlen(place);
    if (!list || list->writer != getpid()) {
        list = mmap(NULL, sizeof *list, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (list == MAP_FAILED)
            return false;
        list->writer = getpid();
        __atomic_store_n(&pending_now, list, __ATOMIC_RELEASE);
    }
    for (unsigned i = 0; i < PLACES && length < PATH_MAX; i++)
        if (!__atomic_load_n(&list->places[i].used, __ATOMIC_ACQUIRE)) {
            memcpy(list->places[i].path, place, length + 1);
            __atomic_store_n(&list->places[i].used, 1, __ATOMIC_RELEASE);
            __atomic_fetch_add(&list->count, 1, __ATOMIC_RELEASE);
            return true;
        }
    return false;
}

void pending_remove(const char *place) {
    pending_list *list = pending_now;
    for (unsigned i = 0; i < PLACES; i++)
        if (__atomic_load_n(&list->places[i].used, __ATOMIC_ACQUIRE) &&
            strcmp(list->places[i].path, place) == 0) {
            __atomic_store_n(&list->places[i].used, 0, __ATOMIC_RELEASE);
            __atomic_fetch_sub(&list->count, 1, __ATOMIC_RELEASE);
            break;
        }
    __atomic_fetch_add(&list->changes, 1, __ATOMIC_RELEASE);
    syscall(SYS_futex, &list->changes, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

bool pending_any(void) {
    const pending_list *list = __atomic_load_n(&pending_now, __ATOMIC_ACQUIRE);
    return list && __atomic_load_n(&list->count, __ATOMIC_ACQUIRE) > 0;
}

/* The whole path, with the directory's links resolved by the kernel; false: there is no such directory. */
static bool resolve(int folder, const char *path, char out[PATH_MAX]) {
    char link[PROC_FD_MAX], parent[PATH_MAX];
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/')
        length--;
    size_t name = length;
    while (name > 0 && path[name - 1] != '/')
        name--;
    if (length >= PATH_MAX || length == 0)
        return false;
    /* "." and ".." are directories, and not names in one. */
    bool whole = (length - name <= 2 && path[name] == '.' && (length - name == 1 || path[name + 1] == '.'));
    size_t parent_length = whole ? length : name;
    memcpy(parent, path, parent_length);
    memcpy(parent + parent_length, ".", parent_length ? 1 : 2);
    parent[parent_length ? parent_length : 1] = 0;
    int fd = (int)syscall(SYS_openat, folder, parent, O_PATH | O_DIRECTORY | O_CLOEXEC, 0);
    if (fd < 0)
        return false;
    log_format(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t got = syscall(SYS_readlinkat, AT_FDCWD, link, out, PATH_MAX - 1);
    syscall(SYS_close, fd);
    size_t rest = whole ? 0 : length - name;
    if (got <= 0 || (size_t)got + 1 + rest >= PATH_MAX)
        return false;
    if (rest) {
        if (out[got - 1] != '/')
            out[got++] = '/';
        memcpy(out + got, path + name, rest);
    }
    out[(size_t)got + rest] = 0;
    return true;
}

static bool is_pending(const pending_list *list, const char *place, pending_use use) {
    size_t length = place ? strlen(place) : 0;
    for (unsigned i = 0; i < PLACES; i++) {
        if (!__atomic_load_n(&list->places[i].used, __ATOMIC_ACQUIRE))
            continue;
        const char *path = list->places[i].path;
        if (!place || strcmp(path, place) == 0 ||
            (use == PENDING_TREE && strncmp(path, place, length) == 0 &&
             (path[length] == '/' || length == 1)))
            return true;
    }
    return false;
}

void pending_await_slow(int folder, const char *path, pending_use use) {
    pending_list *list = __atomic_load_n(&pending_now, __ATOMIC_ACQUIRE);
    char place[PATH_MAX];
    int saved_errno = errno;
    if (!pending_any() || (path && !resolve(folder, path, place))) {
        errno = saved_errno;
        return;
    }
    for (;;) {
        uint32_t seen = __atomic_load_n(&list->changes, __ATOMIC_ACQUIRE);
        if (!is_pending(list, path ? place : NULL, use) || (kill(list->writer, 0) != 0 && errno == ESRCH))
            break;
        struct timespec nap = {.tv_nsec = WAIT_NS};
        syscall(SYS_futex, &list->changes, FUTEX_WAIT, seen, &nap, NULL, 0);
    }
    errno = saved_errno;
}
