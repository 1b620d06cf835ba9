/* Calls that make, remove and rename names. In FILES_NOTE each notes what was there, and says 1: the call goes on as it is.
 * In FILES_PRIVATE files_open says which place to open; the others do the whole call. */
#include <errno.h>
#include <linux/fs.h>
#include <string.h>
#include <sys/ioctl.h>
#include "base/log.h"
#include "calls.h"
#include "overlay.h"

/* Copies of files and trees, from what lies below to layer 0. */

static int copy_bytes(int from, int to, off_t size) {
    char buffer[16384];
    if (ioctl(to, FICLONE, from) == 0)
        return 0;
    while (size > 0) {
        ssize_t done = syscall(SYS_copy_file_range, from, NULL, to, NULL, (size_t)size, 0);
        if (done <= 0)
            break;
        size -= done;
    }
    for (;;) { /* the rest, where the kernel does not copy */
        ssize_t got = read(from, buffer, sizeof buffer);
        if (got == 0)
            return 0;
        if (got < 0 && errno != EINTR)
            return -1;
        for (ssize_t done = 0; done < got;) {
            ssize_t written = write(to, buffer + done, (size_t)(got - done));
            if (written < 0 && errno != EINTR)
                return -1;
            done += written > 0 ? written : 0;
        }
    }
}

/* A name beside `to` that nobody else has. */
static int temporary_name(const char *to, char *out) {
    static unsigned number;
    const char *slash = strrchr(to, '/');
    size_t length = log_format(out, FILES_PATH_MAX, "%.*s/" FILES_MARK "new.%d.%u", (int)(slash - to), to,
                               (int)getpid(), __atomic_fetch_add(&number, 1, __ATOMIC_RELAXED));
    if (length + 1 < FILES_PATH_MAX)
        return 0;
    errno = ENAMETOOLONG;
    return -1;
}

/* Gives a whole file its name. Another thread may have made the same meanwhile. */
static int put_in_place(const char *made, const char *to, bool replaces) {
    int done = call_rename(made, to, replaces ? 0 : RENAME_NOREPLACE);
    if (done != 0 && errno == EINVAL && !replaces) { /* a file system that cannot */
        done = call_link(made, to, 0);
        if (done == 0 || errno == EEXIST)
            call_unlink(made, 0);
    }
    if (done == 0 || errno != EEXIST || replaces)
        return done;
    call_unlink(made, 0);
    return 0;
}

static int copy_regular(const char *from, const char *to, const struct stat *info, bool replaces) {
    char made[FILES_PATH_MAX];
    struct timespec times[2] = {info->st_atim, info->st_mtim};
    int result = -1, source = call_open(from, O_RDONLY | O_CLOEXEC, 0);
    if (source < 0)
        return -1;
    if (temporary_name(to, made) != 0)
        goto close_source;
    int copy = call_open(made, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (copy < 0)
        goto close_source;
    if (copy_bytes(source, copy, info->st_size) == 0) {
        fchmod(copy, info->st_mode & 07777);
        syscall(SYS_utimensat, copy, NULL, times, 0);
        result = put_in_place(made, to, replaces);
    }
    int reason = errno;
    close(copy);
    if (result != 0)
        call_unlink(made, 0);
    errno = reason;
close_source:
    reason = errno;
    close(source);
    errno = reason;
    if (result != 0)
        files_say_full(to);
    return result;
}

int files_copy(const char *from, const char *to, const struct stat *info) {
    char target[FILES_PATH_MAX];
    if (S_ISREG(info->st_mode))
        return copy_regular(from, to, info, false);
    if (S_ISDIR(info->st_mode))
        return call_mkdir(to, info->st_mode & 07777) == 0 || errno == EEXIST ? 0 : -1;
    if (!S_ISLNK(info->st_mode)) {
        errno = EXDEV; /* sockets, pipes and devices stay where they are */
        return -1;
    }
    ssize_t length = call_readlink(from, target, sizeof target - 1);
    if (length < 0)
        return -1;
    target[length] = '\0';
    return call_symlink(target, to) == 0 || errno == EEXIST ? 0 : -1;
}

/* The same for a copy that is only read, or replaced as a whole: large files may share their data. */
static int files_copy_entry(const char *from, const char *to, const struct stat *info) {
    if (S_ISREG(info->st_mode) && info->st_size >= FILES_SHARED_BYTES && call_link(from, to, 0) == 0)
        return 0;
    return files_copy(from, to, info);
}

/* A file of layer 0 that shares its data with another name gets data of its own. */
static int copy_apart(const files_found *found) {
    char place[FILES_PATH_MAX];
    if (!S_ISREG(found->info.st_mode) || found->info.st_nlink < 2)
        return 0;
    return files_place_in(0, found->path, place) == 0 ? copy_regular(place, place, &found->info, true) : -1;
}

/* Copies the visible file to layer 0; of a directory the folder alone. */
static int files_copy_up(const files_found *found) {
    char from[FILES_PATH_MAX], to[FILES_PATH_MAX];
    if (found->layer == 0)
        return copy_apart(found);
    if (files_place_of(found, from) != 0 || files_place_in(0, found->path, to) != 0 ||
        files_make_parents(0, found->path) != 0)
        return -1;
    return files_copy(from, to, &found->info);
}

int files_clear(const char *place, bool keep) {
    char entries[2048], name[FILES_PATH_MAX];
    if (!keep && (call_unlink(place, 0) == 0 || errno == ENOENT))
        return 0;
    if (!keep && errno != EISDIR && errno != EPERM)
        return -1;
    int folder = call_open(place, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0);
    if (folder < 0)
        return -1;
    for (bool again = true; again;) { /* names that were removed may have hidden others from the first look */
        long size;
        again = false;
        lseek(folder, 0, SEEK_SET);
        while ((size = call_entries(folder, entries, sizeof entries)) > 0)
            for (long at = 0; at < size;) {
                const call_entry *entry = (const call_entry *)(entries + at);
                at += entry->size;
                if (strcmp(entry->name, ".") == 0 || strcmp(entry->name, "..") == 0)
                    continue;
                if (log_format(name, sizeof name, "%s/%s", place, entry->name) + 1 < sizeof name &&
                    files_clear(name, false) == 0)
                    again = true;
            }
    }
    close(folder);
    return keep ? 0 : call_unlink(place, AT_REMOVEDIR);
}

/* What rank 0 changes, as it was when the job began: another rank that comes to the same line of the script later, or earlier,
 * must find what the single process would have found. A name that rank 0 makes gets a marker in the layer `before`; a
 * file that it changes, renames or removes is kept there. Each is done once, before the change. */

static void files_count_note(void) {
    int file = call_open(files_notes(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0)
        return;
    if (write(file, "", 1) != 1) {
        /* without room there is no note either */
    }
    close(file);
}

void files_forget_notes(void) {
    char place[FILES_PATH_MAX];
    if (files_now != FILES_NOTE)
        return;
    if (call_unlink(files_notes(), 0) == 0 && files_place_in(FILES_BEFORE, "", place) == 0)
        files_clear(place, false);
}

/* Rank 0 has made the path, or a folder above it, since the job began. */
static bool is_new(const files_found *found) {
    char path[FILES_PATH_MAX], kind;
    memcpy(path, found->path, found->length + 1);
    for (char *at = path + 1; *at; at++) {
        if (*at != '/')
            continue;
        *at = '\0';
        if (files_marker(FILES_BEFORE, path, &kind))
            return true;
        *at = '/';
    }
    return files_marker(FILES_BEFORE, path, &kind);
}

/* False: it is kept already, or cannot be. */
static bool keep_once(const files_found *found, bool replaces) {
    char place[FILES_PATH_MAX];
    struct stat kept;
    if (found->outside || is_new(found))
        return false;
    if (found->missing)
        return files_mark(FILES_BEFORE, found->path, "gone") == 0;
    if (files_place_in(FILES_BEFORE, found->path, place) != 0 || call_lstat(place, &kept) == 0 ||
        files_make_parents(FILES_BEFORE, found->path) != 0)
        return false;
    bool regular = S_ISREG(found->info.st_mode);
    if (replaces && regular && call_link(found->path, place, 0) == 0)
        return true;
    /* A large file that is changed in place is not kept: another rank reads it while rank 0 writes only if nothing
     * that they do together, a step or an evaluation, lies between. */
    if (regular && !replaces && found->info.st_size >= FILES_SHARED_BYTES)
        return false;
    return files_copy(found->path, place, &found->info) == 0;
}

static void keep(const files_found *found, bool replaces) {
    if (keep_once(found, replaces))
        files_count_note();
}

/* Rank 0: keeps the present file of this path for the others, before the call changes it. `replaces`: the call removes or
 * replaces the name, and the file itself stays as it is. */
static void files_note(int folder, const char *path, bool follow, bool replaces) {
    files_found found;
    int saved_errno = errno;
    if (files_find(folder, path, follow, &found) == 0)
        keep(&found, replaces);
    errno = saved_errno;
}

static void keep_tree(const char *path, int depth) {
    char entries[2048], name[FILES_PATH_MAX];
    files_found found;
    if (depth > 64 || files_find(AT_FDCWD, path, false, &found) != 0 || found.missing || found.outside)
        return;
    keep(&found, true);
    if (!S_ISDIR(found.info.st_mode) || is_new(&found))
        return;
    int folder = call_open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0);
    long size;
    while (folder >= 0 && (size = call_entries(folder, entries, sizeof entries)) > 0)
        for (long at = 0; at < size;) {
            const call_entry *entry = (const call_entry *)(entries + at);
            at += entry->size;
            if (strcmp(entry->name, ".") != 0 && strcmp(entry->name, "..") != 0 &&
                strlen(path) + strlen(entry->name) + 2 < sizeof name) {
                strcpy(name, path);
                strcat(strcat(name, "/"), entry->name);
                keep_tree(name, depth + 1);
            }
        }
    if (folder >= 0)
        close(folder);
}

/* The same for a folder and everything in it. */
static void files_note_tree(int folder, const char *path) {
    files_found found;
    int saved_errno = errno;
    if (files_find(folder, path, false, &found) == 0 && !found.missing && !found.outside)
        keep_tree(found.path, 0);
    errno = saved_errno;
}

static int fail(int reason) {
    errno = reason;
    return -1;
}

/* A folder of a layer is this process's own; of a real one the system knows. */
int files_may_change(const files_found *found) {
    char place[FILES_PATH_MAX];
    if (files_place_in(files_layer_count(), found->path, place) != 0)
        return -1;
    if (!(found->parent_visible & 1u << files_layer_count()))
        return 0;
    char *slash = strrchr(place, '/');
    slash[slash == place] = '\0';
    return call_access(place, W_OK | X_OK);
}

/* The name is this process's own, where it really is. */
static int make_own(const files_found *found, char *out) {
    struct stat info;
    if (call_lstat(found->path, &info) == 0)
        return fail(EEXIST);
    return files_mark(0, found->path, "own") == 0 ? files_place_in(files_layer_count(), found->path, out)
                                                  : -1;
}

static bool may_be_own(const files_found *found) {
    struct stat info;
    return call_lstat(found->path, &info) != 0;
}

static int open_new(const files_found *found, int flags, mode_t mode, char *out) {
    if (!(flags & O_CREAT))
        return fail(ENOENT);
    if (flags & O_EXCL && files_is_temporary(found->path, mode, 0600) && may_be_own(found))
        return make_own(found, out);
    return files_may_change(found) == 0 && files_make_parents(0, found->path) == 0
               ? files_place_in(0, found->path, out)
               : -1;
}

/* A file that is emptied needs no copy of what it holds. */
static int open_emptied(files_found *found) {
    char place[FILES_PATH_MAX];
    if (found->layer == 0 && found->info.st_nlink < 2)
        return 0;
    if (files_make_parents(0, found->path) != 0 || files_place_in(0, found->path, place) != 0)
        return -1;
    if (found->layer == 0 && call_unlink(place, 0) != 0)
        return -1;
    int file = call_open(place, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0)
        return -1;
    fchmod(file, found->info.st_mode & 07777);
    close(file);
    return 0;
}

/* Writes to a real file are allowed or not by the system, as without layers. */
static int may_write(const files_found *found) {
    char place[FILES_PATH_MAX];
    return found->layer == 0 ? 0 : files_place_of(found, place) == 0 ? call_access(place, W_OK) : -1;
}

int files_open(int folder, const char *path, int flags, mode_t mode, char *out) {
    files_found found;
    bool unnamed = (flags & O_TMPFILE) == O_TMPFILE;
    bool writes = !(flags & O_PATH) && ((flags & O_ACCMODE) != O_RDONLY || flags & (O_CREAT | O_TRUNC));
    bool follow = !(flags & O_NOFOLLOW) && (flags & (O_CREAT | O_EXCL)) != (O_CREAT | O_EXCL);
    if (files_now == FILES_NOTE && (!writes || unnamed))
        return 1;
    int wrong = files_find(folder, path, follow, &found);
    if (files_now == FILES_NOTE) {
        if (!wrong && !(found.missing && flags & O_EXCL && files_is_temporary(found.path, mode, 0600)))
            files_note(folder, path, follow, false);
        return 1;
    }
    if (wrong)
        return wrong;
    if (found.outside)
        return files_place_of(&found, out);
    if (found.missing)
        return open_new(&found, flags, mode, out);
    if (flags & O_CREAT && flags & O_EXCL)
        return fail(EEXIST);
    if (unnamed) { /* where a name can be given to it later */
        char inside[FILES_PATH_MAX];
        size_t length = found.length;
        memcpy(inside, found.path, length);
        strcpy(inside + length, length + 2 < sizeof inside ? "/." : "");
        return files_make_parents(0, inside) == 0 ? files_place_in(0, found.path, out) : -1;
    }
    if (!writes || !S_ISREG(found.info.st_mode))
        return files_place_of(&found, out);
    if (may_write(&found) != 0 || (flags & O_TRUNC ? open_emptied(&found) : files_copy_up(&found)) != 0)
        return -1;
    return files_place_in(0, found.path, out);
}

int files_mkdir(int folder, const char *path, mode_t mode) {
    files_found found;
    char place[FILES_PATH_MAX];
    if (files_now == FILES_NOTE) {
        files_note(folder, path, false, false);
        return 1;
    }
    int wrong = files_find(folder, path, false, &found);
    if (wrong)
        return wrong;
    if (found.outside)
        return files_place_of(&found, place) == 0 ? call_mkdir(place, mode) : -1;
    if (!found.missing)
        return fail(EEXIST);
    if (files_is_temporary(found.path, mode, 0700) && may_be_own(&found))
        return make_own(&found, place) == 0 ? call_mkdir(place, mode) : -1;
    if (files_may_change(&found) != 0 || files_make_parents(0, found.path) != 0 ||
        files_place_in(0, found.path, place) != 0)
        return -1;
    /* What rank 0, or another process, makes there later is not in it. */
    if (found.parent_visible & ~1u && files_mark(0, found.path, "gone") != 0)
        return -1;
    return call_mkdir(place, mode);
}

/* The name is gone from all that lies below layer 0. */
static int hide(const files_found *found) {
    return found->parent_visible & ~1u ? files_mark(0, found->path, "gone") : 0;
}

static int remove_outside(const files_found *found, int flags) {
    char place[FILES_PATH_MAX];
    if (files_place_of(found, place) != 0 || call_unlink(place, flags) != 0)
        return -1;
    if (found->own)
        files_unmark(found->path);
    return 0;
}

int files_remove(int folder, const char *path, int flags) {
    files_found found;
    char place[FILES_PATH_MAX];
    if (files_now == FILES_NOTE) {
        files_note(folder, path, false, true);
        return 1;
    }
    int wrong = files_find(folder, path, false, &found);
    if (wrong)
        return wrong;
    if (found.outside)
        return remove_outside(&found, flags);
    if (found.missing)
        return fail(ENOENT);
    bool is_folder = S_ISDIR(found.info.st_mode);
    if (is_folder != !!(flags & AT_REMOVEDIR))
        return fail(is_folder ? EISDIR : ENOTDIR);
    int empty = is_folder ? files_is_empty(&found) : 1;
    if (empty != 1)
        return empty ? -1 : fail(ENOTEMPTY);
    if (files_may_change(&found) != 0 || hide(&found) != 0)
        return -1;
    if (found.visible & 1u && (files_place_in(0, found.path, place) != 0 || files_clear(place, false) != 0))
        return -1;
    return 0;
}

/* All that is visible of a tree is in layer 0 afterwards, with nothing of what lies below. */
static int copy_up_tree(const files_found *found) {
    char path[FILES_PATH_MAX], from[FILES_PATH_MAX], to[FILES_PATH_MAX];
    files_found inside;
    if (found->layer == 0 && !S_ISDIR(found->info.st_mode))
        return 0;
    if (files_place_of(found, from) != 0 || files_place_in(0, found->path, to) != 0 ||
        files_make_parents(0, found->path) != 0 || files_copy_entry(from, to, &found->info) != 0)
        return -1;
    if (!S_ISDIR(found->info.st_mode) || !(found->visible & ~1u))
        return 0;
    files_listing *names = files_listing_open(found);
    if (!names)
        return -1;
    int result = 0;
    for (const call_entry *entry; !result && (entry = files_listing_next(names));) {
        if (strcmp(entry->name, ".") == 0 || strcmp(entry->name, "..") == 0)
            continue;
        if (found->length + strlen(entry->name) + 2 > sizeof path) {
            result = fail(ENAMETOOLONG);
            break;
        }
        strcpy(path, found->path);
        strcat(strcat(path, "/"), entry->name);
        result = files_find(AT_FDCWD, path, false, &inside);
        if (!result && !inside.missing && !inside.outside)
            result = copy_up_tree(&inside);
    }
    files_listing_close(names);
    return result;
}

/* Renames between a diverted name and one that is not: by a copy where the file system is another one. */
static int rename_across(const files_found *from, const files_found *to) {
    char source[FILES_PATH_MAX], target[FILES_PATH_MAX];
    if (files_place_of(from, source) != 0)
        return -1;
    if (!to->outside && (files_may_change(to) != 0 || files_make_parents(0, to->path) != 0))
        return -1;
    if (files_place_in(to->outside ? files_layer_count() : 0, to->path, target) != 0)
        return -1;
    if (from->outside && call_rename(source, target, 0) == 0) {
        if (from->own)
            files_unmark(from->path);
        return 0;
    }
    if (from->outside && errno != EXDEV)
        return -1;
    struct stat info;
    if (call_lstat(source, &info) != 0)
        return -1;
    if (S_ISDIR(info.st_mode))
        return fail(EXDEV); /* as between two file systems: who moves folders copies them then */
    if ((call_unlink(target, 0) != 0 && errno != ENOENT) || files_copy(source, target, &info) != 0)
        return -1;
    return files_remove(AT_FDCWD, from->path, 0);
}

static int rename_inside(const files_found *from, const files_found *to) {
    char source[FILES_PATH_MAX], target[FILES_PATH_MAX];
    bool is_folder = S_ISDIR(from->info.st_mode);
    if (!to->missing && is_folder != S_ISDIR(to->info.st_mode))
        return fail(is_folder ? ENOTDIR : EISDIR);
    if (is_folder && strncmp(to->path, from->path, from->length) == 0 && to->path[from->length] == '/')
        return fail(EINVAL);
    int empty = is_folder && !to->missing ? files_is_empty(to) : 1;
    if (empty != 1)
        return empty ? -1 : fail(ENOTEMPTY);
    if (files_may_change(from) != 0 || files_may_change(to) != 0 || files_make_parents(0, to->path) != 0 ||
        files_place_in(0, from->path, source) != 0 || files_place_in(0, to->path, target) != 0)
        return -1;
    if (copy_up_tree(from) != 0)
        return -1;
    if (is_folder && files_clear(target, false) != 0 && errno != ENOENT)
        return -1;
    if ((is_folder && hide(to) != 0) || hide(from) != 0)
        return -1;
    return call_rename(source, target, 0);
}

int files_rename(int from_folder, const char *from, int to_folder, const char *to, unsigned flags) {
    files_found old, new;
    int wrong;
    if (files_now == FILES_NOTE) {
        files_note_tree(from_folder, from);
        if (flags & ~(unsigned)RENAME_NOREPLACE)
            files_note_tree(to_folder, to);
        files_note(to_folder, to, false, true);
        return 1;
    }
    if ((wrong = files_find(from_folder, from, false, &old)) ||
        (wrong = files_find(to_folder, to, false, &new)))
        return wrong;
    if (old.outside && new.outside) {
        char source[FILES_PATH_MAX], target[FILES_PATH_MAX];
        return files_place_of(&old, source) == 0 && files_place_of(&new, target) == 0
                   ? call_rename(source, target, flags)
                   : -1;
    }
    if (flags & ~(unsigned)RENAME_NOREPLACE)
        return fail(EINVAL);
    if (!old.outside && old.missing)
        return fail(ENOENT);
    if (flags & RENAME_NOREPLACE && !new.outside && !new.missing)
        return fail(EEXIST);
    if (strcmp(old.path, new.path) == 0)
        return 0;
    return old.outside || new.outside ? rename_across(&old, &new) : rename_inside(&old, &new);
}

int files_link(int from_folder, const char *from, int to_folder, const char *to, int flags) {
    files_found old, new;
    char source[FILES_PATH_MAX], target[FILES_PATH_MAX];
    int wrong;
    if (files_now == FILES_NOTE) {
        files_note(to_folder, to, false, false);
        return 1;
    }
    if ((wrong = files_find(from_folder, from, flags & AT_SYMLINK_FOLLOW, &old)) ||
        (wrong = files_find(to_folder, to, false, &new)))
        return wrong;
    if (!old.outside && old.missing)
        return fail(ENOENT);
    if (!new.outside && !new.missing)
        return fail(EEXIST);
    if (!new.outside && (files_may_change(&new) != 0 || files_make_parents(0, new.path) != 0))
        return -1;
    /* Two names of one file, both private: each change is seen through both until one of them is changed (copy_apart). */
    if (!old.outside && old.layer > 0 && files_copy_up(&old) != 0)
        return -1;
    if (files_place_in(old.outside ? files_layer_count() : 0, old.path, source) != 0 ||
        files_place_in(new.outside ? files_layer_count() : 0, new.path, target) != 0)
        return -1;
    return call_link(source, target, flags);
}

int files_adopt(const char *path, const char *from) {
    files_found found;
    char place[FILES_PATH_MAX];
    struct stat info;
    if (files_now != FILES_PRIVATE)
        return 0;
    if (files_find(AT_FDCWD, path, true, &found) != 0)
        return -1;
    if (found.outside) {
        if (!from || (call_lstat(found.path, &info) == 0 && !S_ISREG(info.st_mode)))
            return 0; /* what rank 0 has written is there; a device and the like are nobody's */
    } else if (files_make_parents(0, found.path) != 0) {
        return -1;
    }
    if (files_place_in(found.outside ? files_layer_count() : 0, found.path, place) != 0 ||
        call_lstat(from ? from : found.path, &info) != 0 || (call_unlink(place, 0) != 0 && errno != ENOENT))
        return -1;
    return files_copy_entry(from ? from : found.path, place, &info);
}

int files_use(int folder, const char *path, files_intent intent, char *out) {
    files_found found;
    bool follow = intent != FILES_READ_LINK && intent != FILES_CHANGE_LINK && intent != FILES_MAKE;
    bool reads = intent == FILES_READ || intent == FILES_READ_LINK || intent == FILES_EXECUTE;
    if (files_now == FILES_NOTE) {
        if (!reads)
            files_note(folder, path, follow, false);
        return 1;
    }
    int wrong = files_find(folder, path, follow, &found);
    if (wrong)
        return wrong;
    if (found.outside)
        return intent == FILES_EXECUTE ? 1 : files_place_of(&found, out);
    if (intent == FILES_MAKE) {
        if (!found.missing) {
            errno = EEXIST;
            return -1;
        }
        return files_may_change(&found) == 0 && files_make_parents(0, found.path) == 0
                   ? files_place_in(0, found.path, out)
                   : -1;
    }
    if (found.missing) {
        errno = ENOENT;
        return -1;
    }
    if (intent == FILES_EXECUTE && found.layer == files_layer_count())
        return 1;
    if (reads)
        return files_place_of(&found, out);
    return files_copy_up(&found) == 0 ? files_place_in(0, found.path, out) : -1;
}
