/* What rank 0 changes, as it was when the job began: another rank that comes to the same line of the script later, or earlier,
 * must find what the single process would have found. A name that rank 0 makes gets a marker in the layer `before`; a
 * file that it changes, renames or removes is kept there. Each is done once, before the change. */
#include "overlay.h"

#include <errno.h>
#include <string.h>
#include "calls.h"

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

void files_note(int folder, const char *path, bool follow, bool replaces) {
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

void files_note_tree(int folder, const char *path) {
    files_found found;
    int saved_errno = errno;
    if (files_find(folder, path, false, &found) == 0 && !found.missing && !found.outside)
        keep_tree(found.path, 0);
    errno = saved_errno;
}
