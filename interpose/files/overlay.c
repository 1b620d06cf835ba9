#include "overlay.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>
#include "base/error.h"
#include "base/log.h"
#include "job/options.h"
#include "calls.h"

enum { LINKS_MAX = 40, DEPTH_MAX = 256 };

files_mode files_now = FILES_OFF;

typedef struct layer {
    char root[OPTION_STRING_MAX + 32];
    size_t length;
} layer;

static layer layers[FILES_BEFORE + 1];
static int layer_count;
static char apart[OPTION_STRING_MAX]; /* the log directory: its files are Castor's */
/* Has one byte for each note, and gets it before what is noted changes. */
static char note_count[OPTION_STRING_MAX + 32];

/* ---- temporary names ---- */

static char temporary[3][OPTION_STRING_MAX] = {"/tmp", "/var/tmp", ""};

static void temporary_start(const char *folder) {
    log_format(temporary[2], sizeof temporary[2], "%s", folder);
}

bool files_is_temporary(const char *path, mode_t mode, mode_t own_mode) {
    const char *slash = strrchr(path, '/');
    if (mode != own_mode)
        return false;
    for (int i = 0; i < 3; i++) {
        size_t length = strlen(temporary[i]);
        if (length && (size_t)(slash - path) == length && strncmp(path, temporary[i], length) == 0)
            return true;
    }
    return false;
}

/* ---- layers ---- */

static void layer_set(layer *l, const char *folder, const char *name) {
    l->length = log_format(l->root, sizeof l->root, "%s%s", folder, name);
}

void files_start(void) {
    char name[32];
    const castor_options *o = options();
    log_format(apart, sizeof apart, "%s", o->log_dir);
    log_format(name, sizeof name, "/rank%d", o->rank);
    layer_count = 0;
    if (o->files_diverted[0])
        layer_set(&layers[layer_count++], o->files_diverted, "");
    if (o->files[0] && o->rank > 0) {
        layer_set(&layers[layer_count++], o->files, name);
        layer_set(&layers[layer_count++], o->files, "/before");
    } else if (o->files[0]) {
        layer_set(&layers[FILES_BEFORE], o->files, "/before");
    }
    if (o->files[0])
        log_format(note_count, sizeof note_count, "%s/notes", o->files);
    temporary_start(o->temporary_dir);
    files_now = layer_count ? FILES_PRIVATE : o->files[0] ? FILES_NOTE : FILES_OFF;
}

castor_status files_add_layer(const char *folder) {
    char inside[OPTION_STRING_MAX + 2];
    size_t length = strlen(folder);
    if (folder[0] != '/' || length >= OPTION_STRING_MAX || folder[length - 1] == '/')
        return error_set(CASTOR_ERR_ARGUMENT,
                         "a folder for private files must be an absolute path, and is \"%s\"", folder);
    if (layer_count == FILES_LAYERS_MAX)
        return error_set(CASTOR_ERR_UNSUPPORTED, "the files of this process are diverted %d times already",
                         layer_count);
    log_format(inside, sizeof inside, "%s/.", folder);
    if (files_make_parents(layer_count, inside) != 0)
        return error_set(CASTOR_ERR_SYSTEM, "the folder %s for private files cannot be made: error %d",
                         folder, errno);
    memmove(layers + 1, layers, (size_t)layer_count * sizeof *layers);
    layer_set(&layers[0], folder, "");
    layer_count++;
    __atomic_store_n(&files_now, FILES_PRIVATE, __ATOMIC_SEQ_CST);
    return CASTOR_OK;
}

int files_layer_count(void) {
    return layer_count;
}

/* ---- names ---- */

int files_place_in(int at, const char *path, char *out) {
    bool real = at >= layer_count && at != FILES_BEFORE;
    size_t root = real ? 0 : layers[at].length, length = strlen(path);
    if (root + length >= FILES_PATH_MAX) {
        errno = ENAMETOOLONG;
        return -1;
    }
    memcpy(out, layers[at].root, root);
    memcpy(out + root, path, length + 1);
    return 0;
}

int files_place_of(const files_found *found, char *out) {
    int at = found->layer;
    if (found->outside)
        at = layer_count;
    else if (!found->missing && S_ISDIR(found->info.st_mode))
        for (at = layer_count; !(found->visible & 1u << at); at--)
            ;
    return files_place_in(at, found->path, out);
}

void files_path_of_place(char *place) {
    for (int i = 0; i < layer_count; i++) {
        size_t length = layers[i].length;
        if (strncmp(place, layers[i].root, length) != 0 || (place[length] != '/' && place[length]))
            continue;
        memmove(place, place + length, strlen(place + length) + 1);
        if (!place[0])
            strcpy(place, "/");
        return;
    }
}

void files_say_full(const char *place) {
    static int said;
    if (errno != ENOSPC && errno != EDQUOT)
        return;
    int reason = errno;
    if (!__atomic_exchange_n(&said, 1, __ATOMIC_RELAXED))
        LOG_E("the disk is full at %s, where this rank keeps its own copies of files that it changes: set "
              "castor run --log-dir to a folder on a larger disk",
              place);
    errno = reason;
}

int files_make_parents(int layer, const char *path) {
    char place[FILES_PATH_MAX];
    if (files_place_in(layer, path, place) != 0)
        return -1;
    char *end = strrchr(place, '/');
    *end = '\0';
    if (end == place || call_mkdir(place, 0700) == 0 || errno == EEXIST)
        return 0;
    for (char *at = place + 1; errno == ENOENT || errno == EEXIST;
         at++) { /* from the top, the layer's own folder too */
        at += strcspn(at, "/");
        *at = '\0';
        if (call_mkdir(place, 0700) != 0 && errno != EEXIST)
            break;
        if (at == end)
            return 0;
        *at = '/';
        errno = ENOENT;
    }
    files_say_full(place);
    return -1;
}

static bool marker_place(int at, const char *path, char *out) {
    const char *slash = strrchr(path, '/');
    size_t folder = (size_t)(slash + 1 - path), name = strlen(slash + 1);
    size_t mark = sizeof FILES_MARK - 1, root = layers[at].length;
    if (root + folder + mark + name >= FILES_PATH_MAX)
        return false;
    memcpy(out, layers[at].root, root);
    memcpy(out + root, path, folder);
    memcpy(out + root + folder, FILES_MARK, mark);
    memcpy(out + root + folder + mark, slash + 1, name + 1);
    return true;
}

bool files_marker(int at, const char *path, char *kind) {
    char place[FILES_PATH_MAX];
    return marker_place(at, path, place) && call_readlink(place, kind, 1) == 1;
}

int files_mark(int at, const char *path, const char *kind) {
    char place[FILES_PATH_MAX];
    if (!marker_place(at, path, place)) {
        errno = ENAMETOOLONG;
        return -1;
    }
    if (files_make_parents(at, path) != 0)
        return -1;
    return call_symlink(kind, place) == 0 || errno == EEXIST ? 0 : -1;
}

void files_unmark(const char *path) {
    char place[FILES_PATH_MAX];
    int saved_errno = errno;
    if (marker_place(0, path, place))
        call_unlink(place, 0);
    errno = saved_errno;
}

/* ---- notes ---- */

const char *files_notes(void) {
    return note_count;
}

static int64_t notes_counted(void) {
    struct stat info;
    if (files_now != FILES_PRIVATE || !note_count[0])
        return -1;
    return call_lstat(note_count, &info) == 0 ? info.st_size : 0;
}

static bool noted_since(const files_found *found) {
    int saved_errno = errno;
    bool more = notes_counted() != found->notes;
    errno = saved_errno;
    return more;
}

/* ---- the walk ---- */

typedef struct walk {
    files_found *found;
    char rest[FILES_PATH_MAX];
    const char *at;              /* in `rest`: what is not walked yet */
    unsigned visible[DEPTH_MAX]; /* of the folder at each depth */
    int depth, links, own_depth; /* own_depth: from here on all is this process's own; 0: nothing is */
    bool follow, looked;         /* looked: `found` tells of its path, not of one below */
    bool careful; /* the notes are looked through even if a folder is not in them: it may be soon */
} walk;

static unsigned everywhere(void) {
    return (2u << layer_count) - 1;
}

static bool begins_with(const char *path, const char *folder) {
    size_t length = strlen(folder);
    return length && strncmp(path, folder, length) == 0 && (path[length] == '/' || !path[length]);
}

bool files_is_apart(const char *path) {
    return begins_with(path, "/proc") || begins_with(path, "/dev") || begins_with(path, "/sys") ||
           begins_with(path, apart) || begins_with(path, options()->offload_dir) ||
           begins_with(path, options()->moments_dir);
}

/* The folder that relative names begin at; false: it has none now. */
static bool base_find(int folder, char *out) {
    char name[64];
    ssize_t length;
    if (folder == AT_FDCWD) {
        length = syscall(SYS_getcwd, out, FILES_PATH_MAX) - 1;
    } else {
        log_format(name, sizeof name, "/proc/self/fd/%d", folder);
        length = call_readlink(name, out, FILES_PATH_MAX);
    }
    if (length <= 0 || length >= FILES_PATH_MAX || out[0] != '/')
        return false;
    out[length] = '\0';
    files_path_of_place(out);
    return true;
}

/* 1: nothing to walk. */
static int walk_begin(walk *w, int folder, const char *path) {
    size_t base = 0, length;
    if (!path || !path[0])
        return 1;
    if (path[0] != '/') {
        if (!base_find(folder, w->rest))
            return 1;
        base = strlen(w->rest);
        w->rest[base++] = '/';
    }
    length = strlen(path);
    if (base + length >= sizeof w->rest) {
        errno = ENAMETOOLONG;
        return -1;
    }
    memcpy(w->rest + base, path, length + 1);
    w->at = w->rest;
    w->depth = w->links = w->own_depth = 0;
    w->visible[0] = everywhere();
    w->found->length = 0;
    w->found->path[0] = '\0';
    return 0;
}

static void walk_pop(walk *w) {
    files_found *found = w->found;
    if (!w->depth)
        return;
    while (found->path[--found->length] != '/')
        ;
    found->path[found->length] = '\0';
    if (w->own_depth == w->depth)
        w->own_depth = 0;
    w->depth--;
    w->looked = false;
}

static int walk_append(walk *w, const char *name, size_t length) {
    files_found *found = w->found;
    if (found->length + length + 1 >= sizeof found->path || w->depth + 1 >= DEPTH_MAX) {
        errno = ENAMETOOLONG;
        return -1;
    }
    found->path[found->length++] = '/';
    memcpy(found->path + found->length, name, length);
    found->length += length;
    found->path[found->length] = '\0';
    w->depth++;
    return 0;
}

/* Looks for found->path in the layers where its folder is visible. 0, or an errno. */
static int walk_check(walk *w) {
    files_found *found = w->found;
    unsigned parent = w->visible[w->depth - 1];
    char place[FILES_PATH_MAX], kind;
    struct stat info, real_info;
    int real = layer_count, real_wrong = 0;
    found->missing = true;
    found->visible = 0;
    found->parent_visible = parent;
    if (parent & 1u << real && call_lstat(found->path, &real_info) != 0)
        real_wrong = errno;
    for (int i = 0; i <= real; i++) {
        if (!(parent & 1u << i))
            continue;
        if (files_place_in(i, found->path, place) != 0)
            return errno;
        int wrong = real_wrong;
        if (i == real)
            info = real_info;
        else
            wrong = call_lstat(place, &info) == 0 ? 0 : errno;
        if (!wrong) {
            if (!found->missing && !S_ISDIR(info.st_mode))
                break;
            if (found->missing) {
                found->info = info;
                found->layer = i;
            }
            found->missing = false;
            found->visible |= 1u << i;
            if (!S_ISDIR(info.st_mode))
                break;
        } else if (wrong != ENOENT && wrong != ENOTDIR && i == real) {
            return wrong;
        }
        if (i < real && files_marker(i, found->path, &kind)) {
            if (kind == 'o') {
                w->own_depth = w->depth;
                found->visible = 1u << real;
                found->layer = real;
                found->missing = call_lstat(found->path, &found->info) != 0;
            }
            break;
        }
    }
    if (w->careful && real && found->visible & 1u << real)
        found->visible |= parent & 1u << (real - 1);
    w->visible[w->depth] = found->visible;
    w->looked = true;
    return 0;
}

static int walk_find_root(walk *w) {
    files_found *found = w->found;
    strcpy(found->path, "/");
    found->length = 1;
    found->layer = layer_count;
    found->visible = found->parent_visible = everywhere();
    return call_lstat("/", &found->info) == 0 ? 0 : errno;
}

/* What the link at found->path points at comes before the rest. */
static int walk_splice(walk *w) {
    char place[FILES_PATH_MAX], target[FILES_PATH_MAX];
    if (++w->links > LINKS_MAX)
        return ELOOP;
    if (files_place_in(w->found->layer, w->found->path, place) != 0)
        return errno;
    ssize_t length = call_readlink(place, target, sizeof target);
    if (length <= 0)
        return length ? errno : ENOENT;
    size_t rest = strlen(w->at);
    if ((size_t)length + rest + 1 > sizeof target)
        return ENAMETOOLONG;
    memcpy(target + length, w->at, rest + 1);
    memcpy(w->rest, target, (size_t)length + rest + 1);
    w->at = w->rest;
    if (target[0] == '/')
        while (w->depth)
            walk_pop(w);
    else
        walk_pop(w);
    return 0;
}

static int walk_all(walk *w) {
    files_found *found = w->found;
    for (;;) {
        while (*w->at == '/')
            w->at++;
        size_t length = strcspn(w->at, "/");
        if (!length)
            break;
        const char *name = w->at;
        w->at += length;
        if (length == 1 && name[0] == '.')
            continue;
        if (length == 2 && name[0] == '.' && name[1] == '.') {
            walk_pop(w);
            continue;
        }
        if (walk_append(w, name, length) != 0)
            return errno;
        if (files_is_apart(found->path)) { /* as it is from here on, links and all */
            if (found->length + strlen(w->at) >= sizeof found->path)
                return ENAMETOOLONG;
            strcpy(found->path + found->length, w->at);
            found->outside = true;
            return 0;
        }
        int wrong = walk_check(w);
        if (wrong)
            return wrong;
        bool more = *w->at == '/', last = !w->at[strspn(w->at, "/")];
        if (found->missing && last)
            break;
        if (found->missing)
            return ENOENT;
        if (S_ISLNK(found->info.st_mode) && (more || w->follow)) {
            wrong = walk_splice(w);
            if (wrong)
                return wrong;
        } else if (more && !S_ISDIR(found->info.st_mode)) {
            return ENOTDIR;
        }
    }
    if (!w->depth)
        return walk_find_root(w);
    return w->looked ? 0 : walk_check(w); /* not where it ends in ".." */
}

static int find_once(int folder, const char *path, bool follow, bool careful, files_found *out) {
    walk w = {.found = out, .follow = follow, .careful = careful};
    out->missing = out->outside = out->own = false;
    out->layer = layer_count;
    out->visible = 0;
    out->info.st_mode = 0;
    out->notes = notes_counted();
    int begun = walk_begin(&w, folder, path);
    if (begun)
        return begun;
    int wrong = walk_all(&w);
    if (wrong) {
        errno = wrong;
        return -1;
    }
    if (w.own_depth) {
        out->outside = true;
        out->own = w.own_depth == w.depth;
    }
    return 0;
}

int files_find(int folder, const char *path, bool follow, files_found *out) {
    int saved_errno = errno, result = find_once(folder, path, follow, false, out);
    if (noted_since(out))
        result = find_once(folder, path, follow, true, out);
    if (result >= 0)
        errno = saved_errno;
    return result;
}

int files_find_again(files_found *found) {
    char path[FILES_PATH_MAX];
    if (!noted_since(found))
        return 0;
    memcpy(path, found->path, found->length + 1);
    return find_once(AT_FDCWD, path, false, true, found) == 0 ? 1 : -1;
}
