/* A process that is to leave no trace: what it has open, and has mapped, is replaced by what is its own. */
#include "overlay.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "base/error.h"
#include "base/log.h"
#include "job/options.h"
#include "calls.h"

#define COPIED_BYTES_MAX (64 << 20)

typedef enum change { KEEP, NOTHING, AGAIN, EMPTY, COPY } change;

static bool is_castors(const char *name) {
    const char *offload = options()->offload_dir;
    return strncmp(name, "/memfd:", 7) == 0 || files_is_apart(name) ||
           (offload[0] && strncmp(name, offload, strlen(offload)) == 0);
}

/* What becomes of a descriptor. */
static change change_of(int file, int flags, const struct stat *info) {
    char place[64], name[FILES_PATH_MAX];
    bool writes = (flags & O_ACCMODE) != O_RDONLY;
    if (flags & O_PATH)
        return KEEP;
    if (S_ISFIFO(info->st_mode) || S_ISSOCK(info->st_mode) || (S_ISCHR(info->st_mode) && isatty(file)))
        return writes ? NOTHING : KEEP;
    if (S_ISDIR(info->st_mode))
        return AGAIN;
    if (!S_ISREG(info->st_mode))
        return KEEP;
    log_format(place, sizeof place, "/proc/self/fd/%d", file);
    ssize_t length = call_readlink(place, name, sizeof name - 1);
    name[length > 0 ? length : 0] = '\0';
    if (writes && (file == STDOUT_FILENO || file == STDERR_FILENO))
        return NOTHING;
    if (is_castors(name))
        return KEEP;
    if (!writes)
        return AGAIN;
    return (flags & O_ACCMODE) == O_WRONLY ? EMPTY : COPY;
}

/* An unnamed file of this folder, as large as the one that it stands for. */
static int private_file(const char *folder, int file, int flags, const struct stat *info, bool copies) {
    char name[FILES_PATH_MAX], from[64];
    log_format(from, sizeof from, "/proc/self/fd/%d", file);
    if (log_format(name, sizeof name, "%s/" FILES_MARK "open.%d", folder, file) + 1 >= sizeof name) {
        errno = ENAMETOOLONG;
        return -1;
    }
    call_unlink(name, 0);
    if (copies && files_copy(from, name, info) != 0)
        return -1;
    if (copies && call_access(name, W_OK) != 0)
        syscall(SYS_fchmodat, AT_FDCWD, name, 0600);
    int made = call_open(name, (flags & ~(O_EXCL | O_TRUNC)) | O_CREAT | O_CLOEXEC, 0600);
    int reason = errno;
    call_unlink(name, 0);
    if (made >= 0 && !copies && ftruncate(made, info->st_size) != 0) {
        close(made);
        made = -1;
    }
    errno = made < 0 ? reason : errno;
    return made;
}

static int replacement(const char *folder, int file, change what, int flags, const struct stat *info) {
    char place[64];
    int modes = flags & (O_ACCMODE | O_APPEND | O_NONBLOCK | O_DIRECT | O_NOATIME);
    log_format(place, sizeof place, "/proc/self/fd/%d", file);
    switch (what) {
    case NOTHING:
        return call_open("/dev/null", (flags & O_ACCMODE) | O_CLOEXEC, 0);
    case AGAIN:
        return call_open(place, modes | O_CLOEXEC, 0);
    default:
        return private_file(folder, file, modes & ~O_DIRECT, info, what == COPY);
    }
}

static castor_status replace(const char *folder, int file, bool looks) {
    struct stat info;
    int flags = fcntl(file, F_GETFL), own = fcntl(file, F_GETFD);
    if (flags < 0 || own < 0 || call_fstat(file, &info) != 0)
        return CASTOR_OK; /* closed meanwhile */
    change what = change_of(file, flags, &info);
    if (what == KEEP)
        return CASTOR_OK;
    if (looks && what == COPY && info.st_size > COPIED_BYTES_MAX)
        return error_set(CASTOR_ERR_UNSUPPORTED,
                         "descriptor %d is open for reading and writing on a file of %B, which is "
                         "too much for a private copy",
                         file, (uint64_t)info.st_size);
    if (looks)
        return CASTOR_OK;
    off_t at = lseek(file, 0, SEEK_CUR);
    int made = replacement(folder, file, what, flags, &info);
    if (made < 0 && what == AGAIN)
        return CASTOR_OK; /* it may not be opened any more: what is read moves on for both */
    if (made < 0 || (what != NOTHING && at > 0 && lseek(made, at, SEEK_SET) < 0) ||
        dup3(made, file, own & FD_CLOEXEC ? O_CLOEXEC : 0) < 0) {
        int reason = errno;
        if (made >= 0)
            close(made);
        return error_set(CASTOR_ERR_SYSTEM,
                         "descriptor %d cannot be replaced by a private one in %s: error %d", file, folder,
                         reason);
    }
    close(made);
    return CASTOR_OK;
}

static castor_status replace_all(const char *folder, bool looks) {
    char entries[4096];
    castor_status status = CASTOR_OK;
    int list = call_open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    if (list < 0)
        return error_set(CASTOR_ERR_SYSTEM, "/proc/self/fd cannot be read: error %d", errno);
    long size;
    while (status == CASTOR_OK && (size = call_entries(list, entries, sizeof entries)) > 0)
        for (long at = 0; status == CASTOR_OK && at < size;) {
            const call_entry *entry = (const call_entry *)(entries + at);
            at += entry->size;
            int file = 0;
            for (const char *digit = entry->name; *digit >= '0' && *digit <= '9'; digit++)
                file = 10 * file + (*digit - '0');
            if (entry->name[0] != '.' && file != list)
                status = replace(folder, file, looks);
        }
    close(list);
    return status;
}

/* "BEGIN-END rw-s OFFSET MAJOR:MINOR INODE PATH": a shared mapping of a file becomes private: pages that are written
 * to are this process's own. */
static void map_privately(char *line) {
    char *at = line;
    uintptr_t begin = strtoul(at, &at, 16), end = *at == '-' ? strtoul(at + 1, &at, 16) : 0;
    if (strncmp(at, " rw-s ", 6) != 0)
        return;
    off_t offset = (off_t)strtoull(at + 6, &at, 16);
    at += strspn(at, " ");
    at += strcspn(at, " "); /* the device, which some file systems tell otherwise than stat does */
    uint64_t inode = strtoull(at, &at, 10);
    at += strspn(at, " ");
    struct stat info;
    if (at[0] != '/' || is_castors(at))
        return;
    int file = call_open(at, O_RDONLY | O_CLOEXEC, 0);
    if (file < 0)
        return; /* it has no name any more: nobody else finds what is written to it */
    if (call_fstat(file, &info) == 0 && S_ISREG(info.st_mode) && info.st_ino == inode)
        (void)mmap((void *)begin, end - begin, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, file, offset);
    close(file);
}

static void map_all_privately(void) {
    char text[8192];
    size_t held = 0;
    int maps = call_open("/proc/self/maps", O_RDONLY | O_CLOEXEC, 0);
    ssize_t got;
    while (maps >= 0 && (got = read(maps, text + held, sizeof text - 1 - held)) > 0) {
        held += (size_t)got;
        text[held] = '\0';
        char *line = text, *end;
        while ((end = strchr(line, '\n'))) {
            *end = '\0';
            map_privately(line);
            line = end + 1;
        }
        held = strlen(line);
        memmove(text, line, held);
        if (held == sizeof text - 1)
            held = 0; /* no line is so long */
    }
    if (maps >= 0)
        close(maps);
}

castor_status files_divert(const char *folder) {
    castor_status status = replace_all(folder, true);
    if (status == CASTOR_OK)
        status = files_add_layer(folder);
    if (status != CASTOR_OK)
        return status;
    setenv("CASTOR_FILES_DIVERTED", folder, 1); /* for what this process executes */
    map_all_privately();
    return replace_all(folder, false);
}
