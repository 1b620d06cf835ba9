/* A process's view of the files, and the storage of its changes (docs/files.md).
 *
 * Vocabulary
 *   path       a file's name as the script uses it, absolute and without symbolic links
 *   layer      a folder that holds changed files under their paths; layer 0 holds this process's own changes. The real tree is
 *              below the last layer
 *   place      the name of the actual file of a path, in a layer or in the real tree
 *   marker     a symbolic link `.castor:NAME` beside NAME in a layer: "gone" hides NAME in all layers below and in the real
 *              tree; "own" says that the real NAME, and everything in it, is this process's own (a temporary file)
 *   note       rank 0's record, for the others, of a path as it was when the job began: in the layer `before`
 *
 * Invariants
 *   - A name is visible in a layer that has it, unless a layer above has a marker for it or anything but a directory under
 *     that name. Directories that are visible in several layers are one.
 *   - A "gone" marker is never removed while its folder exists: a file that is made again lies above its marker, and a
 *     directory that is made again is empty because of it.
 *   - Rank 0 notes a path before it changes it. Who looks at the real tree first and at the notes afterwards sees nothing
 *     of what rank 0 does meanwhile. A search in the other order is cheaper, and is made again if rank 0 noted something.
 *   - These folders hold all state, so forked and executed children find it there.
 *   - Nothing here allocates, locks or writes with stdio; every function may be called in a signal handler.
 *
 * Functions return 0, or -1 with the errno that the intercepted call would set. */
#ifndef CASTOR_FILES_OVERLAY_H
#define CASTOR_FILES_OVERLAY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include "base/status.h"

enum {
    FILES_PATH_MAX = 4096,
    FILES_LAYERS_MAX = 4,
    FILES_BEFORE = FILES_LAYERS_MAX + 1 /* the layer of rank 0's notes */
};
/* Files of at least this size are not copied if a hard link can be made and they are only read, or replaced as a whole. */
#define FILES_SHARED_BYTES (64 << 20)
#define FILES_MARK                                                                                           \
    "."                                                                                                      \
    "castor:"

typedef enum files_mode {
    FILES_OFF,     /* calls are passed on as they are */
    FILES_NOTE,    /* rank 0: notes a file before it changes it */
    FILES_PRIVATE, /* another rank: its changes go to layer 0 */
} files_mode;

/* Read by every wrapper, set by files_start and files_divert. */
extern files_mode files_now;

/* How a call uses a path. */
typedef enum files_intent {
    FILES_READ,        /* follows a symbolic link at the end */
    FILES_READ_LINK,   /* does not follow it */
    FILES_CHANGE,      /* changes an existing file in place */
    FILES_CHANGE_LINK, /* the same for a link itself */
    FILES_MAKE,        /* makes a name that does not exist */
    FILES_EXECUTE,     /* as FILES_READ, but a real file keeps the name of the call */
} files_intent;

typedef struct files_found {
    char path[FILES_PATH_MAX];
    size_t length;
    unsigned visible, parent_visible; /* bit i: layer i; bit files_layer_count(): the real tree */
    int layer;                        /* the first in which it is visible */
    bool missing;                     /* its folder exists, but the file does not */
    bool outside;                     /* not diverted: `path` is the place */
    bool own;                         /* ... because it has an "own" marker, at this very path */
    struct stat info;                 /* unless missing or outside */
    int64_t notes;                    /* of rank 0, when the search began; -1: none are for this process */
} files_found;

/* Reads the options. Nothing is diverted unless castor run asked for it. */
void files_start(void);

/* Makes `folder` and puts it above the existing layers: from now on it holds this process's changes. */
castor_status files_add_layer(const char *folder);

/* Finds the file of `path`. 1: the path names no file (NULL, "", an unreachable folder): pass the call on unchanged. */
int files_find(int folder, const char *path, bool follow, files_found *out);

/* Castor's own files, devices, /proc and /sys: never diverted. */
bool files_is_apart(const char *path);

/* Finds a path of files_find again if rank 0 has noted something since, so that nothing of it is seen. 1: it has. */
int files_find_again(files_found *found);

int files_layer_count(void);
/* The place of this path in layer `at`. */
int files_place_in(int at, const char *path, char *out);
/* The place of a found file. For a directory: in the lowest layer, which stays the same when layers above get it too. */
int files_place_of(const files_found *found, char *out);
/* Replaces a place, which may be in a layer, by its path. */
void files_path_of_place(char *place);

/* Logs once that a layer's disk is full, if errno says so. */
void files_say_full(const char *place);
/* Makes the folders above `path` in a layer. */
int files_make_parents(int layer, const char *path);

bool files_marker(int at, const char *path, char *kind);
int files_mark(int at, const char *path, const char *kind);
/* The file that has one byte for each note, and gets it before what is noted changes; "": none. */
const char *files_notes(void);
/* Removes the "own" marker of a file that no longer exists. */
void files_unmark(const char *path);

/* ---- change.c ---- */

/* Finds the place for a call of `intent`: `out` takes it. 1: pass the call on unchanged. In FILES_NOTE: notes, returns 1. */
int files_use(int folder, const char *path, files_intent intent, char *out);

int files_open(int folder, const char *path, int flags, mode_t mode, char *out);
int files_mkdir(int folder, const char *path, mode_t mode);
int files_remove(int folder, const char *path, int flags);
int files_rename(int from_folder, const char *from, int to_folder, const char *to, unsigned flags);
int files_link(int from_folder, const char *from, int to_folder, const char *to, int flags);
/* A new name directly in a temporary directory, for its owner only. tempfile and mkstemp draw such names at random, so those of
 * several ranks differ. They are made in the real tree. */
bool files_is_temporary(const char *path, mode_t mode, mode_t own_mode);
/* Whether this process may make and remove names in the file's folder; else errno. */
int files_may_change(const files_found *found);
/* Rank 0 has written the file for all, at this path or (not NULL) at `from`. Its present content becomes this rank's own. */
int files_adopt(const char *path, const char *from);

/* Removes a place, a file or a folder with all that is in it; recursion as deep as the tree. keep: the folder itself stays. */
int files_clear(const char *place, bool keep);

/* A whole copy with mode and times, or nothing; an existing file stays. */
int files_copy(const char *from, const char *to, const struct stat *info);

/* Rank 0 is not ahead any more: the other ranks begin with the files as they are now. */
void files_forget_notes(void);

/* ---- listing.c ---- */

typedef struct files_listing files_listing;
/* The names of a directory that is visible in several layers; NULL and errno. */
files_listing *files_listing_open(const files_found *found);
/* The next one in the form of a struct dirent; NULL at the end. */
void *files_listing_next(files_listing *listing);
size_t files_listing_position(const files_listing *listing);
void files_listing_seek(files_listing *listing, size_t position);
void files_listing_close(files_listing *listing);
/* 1: the directory has no names. */
int files_is_empty(const files_found *found);

/* ---- divert.c ---- */

/* castor_files_divert (castor.h). */
castor_status files_divert(const char *folder);

#endif
