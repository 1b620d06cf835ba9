/* What a process sees of the files, and where its changes go (docs/files.md).
 *
 * Vocabulary
 *   path       a file's name as the script has it, absolute and without symbolic links
 *   layer      a folder that holds changed files under their paths; layer 0 is where this process puts its own changes. Below
 *              the last layer is the real tree
 *   place      where a path is found: the name of an actual file, in a layer or real
 *   marker     a symbolic link `.castor:NAME` beside NAME in a layer: "gone" says that NAME is hidden in all that lies below,
 *              "own" that the real NAME, and all beneath it, is this process's own (a temporary file)
 *   note       how rank 0 keeps for the others what was there when the job began: in the layer `before`
 *
 * Invariants
 *   - A name is visible in a layer if it is there, and in the next one if no layer above has a marker for it or something
 *     else than a directory. Directories that are visible in several layers are one.
 *   - Markers are never removed while their folder is there: a file that is made anew lies above its marker, and a directory
 *     that is made anew is empty because of it.
 *   - All that is known lies in these folders: children, whether forked or executed, find it there.
 *   - Nothing here allocates, locks or writes with stdio; every function may be called in a handler of a signal.
 *
 * Functions return 0, or -1 with errno as the call that they serve would. */
#ifndef CASTOR_FILES_OVERLAY_H
#define CASTOR_FILES_OVERLAY_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/stat.h>
#include "core/status.h"

enum {
    FILES_PATH_MAX = 4096,
    FILES_LAYERS_MAX = 4,
    FILES_BEFORE = FILES_LAYERS_MAX + 1 /* the layer of rank 0's notes */
};
/* From here on, what is only read or replaced as a whole is not copied where a hard link can be made. */
#define FILES_SHARED_BYTES (64 << 20)
#define FILES_MARK                                                                                           \
    "."                                                                                                      \
    "castor:"

typedef enum files_mode {
    FILES_OFF,     /* calls are passed on as they are */
    FILES_NOTE,    /* rank 0: notes what was there before it changes it */
    FILES_PRIVATE, /* another rank: its changes go to layer 0 */
} files_mode;

/* Read by every wrapper, set by files_start and files_divert. */
extern files_mode files_now;

/* What a call wants of a path. */
typedef enum files_intent {
    FILES_READ,        /* follows a symbolic link at the end */
    FILES_READ_LINK,   /* does not */
    FILES_CHANGE,      /* the file is there and is changed in place */
    FILES_CHANGE_LINK, /* the same of a link itself */
    FILES_MAKE,        /* nothing is there: a name is made */
    FILES_EXECUTE,     /* as FILES_READ, but a real file keeps the name that it is called by */
} files_intent;

typedef struct files_found {
    char path[FILES_PATH_MAX];
    size_t length;
    unsigned visible, parent_visible; /* bit i: layer i; bit files_layer_count(): the real tree */
    int layer;                        /* the first in which it is visible */
    bool missing;                     /* there is a folder for it, but not itself */
    bool outside;                     /* not diverted: `path` is the place */
    bool own;                         /* ... because it has a marker that says so, at this very path */
    struct stat info;                 /* unless missing or outside */
} files_found;

/* Reads the options: nothing is diverted where castor run did not ask for it. */
void files_start(void);

/* From now on, changes of this process go to `folder`, which is made, and is above what was there. */
castor_status files_add_layer(const char *folder);

/* Finds what `path` stands for. 1: the path says nothing (NULL, "", an unreachable folder): the call goes on as it is. */
int files_find(int folder, const char *path, bool follow, files_found *out);

/* Castor's own files, devices and what the kernel shows: never diverted. */
bool files_is_apart(const char *path);

int files_layer_count(void);
/* The name of the file of layer `at` for this path. */
int files_place_in(int at, const char *path, char *out);
/* Of what was found; a directory is that of the lowest layer, which stays the same when layers above get it too. */
int files_place_of(const files_found *found, char *out);
/* The path of an actual file, which may lie in a layer; in place. */
void files_path_of_place(char *place);

bool files_marker(int at, const char *path, char *kind);
int files_mark(int at, const char *path, const char *kind);
/* An own file is there no more. */
void files_unmark(const char *path);

/* What a call of `intent` works on: `out` gets the place. 1: the call goes on as it is. In FILES_NOTE notes and says 1. */
int files_use(int folder, const char *path, files_intent intent, char *out);

/* ---- change.c ---- */

int files_open(int folder, const char *path, int flags, mode_t mode, char *out);
int files_mkdir(int folder, const char *path, mode_t mode);
int files_remove(int folder, const char *path, int flags);
int files_rename(int from_folder, const char *from, int to_folder, const char *to, unsigned flags);
int files_link(int from_folder, const char *from, int to_folder, const char *to, int flags);
/* A new name directly in a temporary directory, for its owner only: such names are drawn at random by who makes them
 * (tempfile, mkstemp), so that those of several ranks differ. They are made where they are. */
bool files_is_temporary(const char *path, mode_t mode, mode_t own_mode);
/* Whether this process may make and remove names beside this one; else errno. */
int files_may_change(const files_found *found);
/* Rank 0 has written the file for all, at this path or (not NULL) at `from`: from now on it is this rank's own, as it is now. */
int files_adopt(const char *path, const char *from);

/* ---- copy.c ---- */

/* A whole copy with mode and times, or nothing; a file that is there already stays. */
int files_copy(const char *from, const char *to, const struct stat *info);
/* The same where the copy is only read, or replaced as a whole: large files may share their data. */
int files_copy_entry(const char *from, const char *to, const struct stat *info);
/* Makes the folders above `path` in a layer. */
int files_make_parents(int layer, const char *path);
/* What is visible of `found` is in layer 0 afterwards; of a directory the folder alone. */
int files_copy_up(const files_found *found);
/* Removes what layer 0 has at a path, whatever it is. */
int files_clear(const char *place);

/* ---- before.c ---- */

/* Rank 0: keeps for the others what is at this path now, before the call changes it. `replaces`: the call gives the name up,
 * the file itself stays as it is. */
void files_note(int folder, const char *path, bool follow, bool replaces);
/* The same of a folder with all that is in it. */
void files_note_tree(int folder, const char *path);

/* ---- listing.c ---- */

typedef struct files_listing files_listing;
/* The names of a directory that is visible in several layers; NULL and errno. */
files_listing *files_listing_open(const files_found *found);
/* The next one in the form of a struct dirent; NULL at the end. */
void *files_listing_next(files_listing *listing);
size_t files_listing_position(const files_listing *listing);
void files_listing_seek(files_listing *listing, size_t position);
void files_listing_close(files_listing *listing);
/* 1: no names in it. */
int files_is_empty(const files_found *found);

/* ---- divert.c ---- */

/* castor_files_divert (castor.h). */
castor_status files_divert(const char *folder);

#endif
