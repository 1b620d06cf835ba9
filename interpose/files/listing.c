/* The names of a directory that is visible in several layers, each once. They are collected when the directory is opened, in
 * memory that is mapped for them. */
#include "overlay.h"

#include <dirent.h>
#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include "calls.h"

enum { READ_BYTES = 32768, FIRST_BYTES = 1 << 16, HIDDEN = 0xff };

/* Names that a marker hides in the layers below are kept as entries of the type HIDDEN. */
struct files_listing {
    size_t size, used, at; /* bytes of this mapping; of the entries in it; where the next one is */
    size_t slot_count, filled;
    uint32_t *slots; /* open addressing over the names: offset of an entry, plus 1 */
    char entries[] __attribute__((aligned(8)));
};

static void *map(size_t size) {
    void *block = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return block == MAP_FAILED ? NULL : block;
}

static uint32_t *slot_of(const files_listing *l, const char *name) {
    uint32_t hash = 2166136261u;
    for (const char *at = name; *at; at++)
        hash = (hash ^ (unsigned char)*at) * 16777619u;
    for (size_t i = hash & (l->slot_count - 1);; i = (i + 1) & (l->slot_count - 1)) {
        uint32_t offset = l->slots[i];
        if (!offset || strcmp(((const call_entry *)(l->entries + offset - 1))->name, name) == 0)
            return &l->slots[i];
    }
}

static bool slots_grow(files_listing *l) {
    size_t before = l->slot_count;
    uint32_t *old = l->slots, *fresh = map(2 * before * sizeof *fresh);
    if (!fresh)
        return false;
    l->slots = fresh;
    l->slot_count = 2 * before;
    for (size_t i = 0; i < before; i++)
        if (old[i])
            *slot_of(l, ((const call_entry *)(l->entries + old[i] - 1))->name) = old[i];
    munmap(old, before * sizeof *old);
    return true;
}

/* Moves the listing where it has no room. */
static call_entry *append(files_listing **listing, uint64_t inode, uint8_t type, const char *name) {
    files_listing *l = *listing;
    size_t length = strlen(name), size = (sizeof(call_entry) + length + 1 + 7) & ~(size_t)7;
    if (sizeof *l + l->used + size > l->size) {
        l = mremap(l, l->size, 2 * l->size, MREMAP_MAYMOVE);
        if (l == MAP_FAILED)
            return NULL;
        l->size *= 2;
        *listing = l;
    }
    call_entry *entry = (call_entry *)(l->entries + l->used);
    l->used += size;
    entry->inode = inode;
    entry->offset = (int64_t)l->used;
    entry->size = (uint16_t)size;
    entry->type = type;
    memcpy(entry->name, name, length + 1);
    return entry;
}

static bool remember(files_listing *l, const call_entry *entry) {
    if (2 * ++l->filled > l->slot_count && !slots_grow(l))
        return false;
    uint32_t *slot = slot_of(l, entry->name);
    if (!*slot)
        *slot = (uint32_t)((const char *)entry - l->entries) + 1;
    return true;
}

/* `markers`: those of the layer, else its other names. Of the real tree all names are taken as they are. */
static bool read_layer(files_listing **listing, int folder, const char *path, int layer, bool markers) {
    char entries[READ_BYTES], name[FILES_PATH_MAX];
    const size_t mark = sizeof FILES_MARK - 1;
    bool real = layer == files_layer_count();
    long size;
    lseek(folder, 0, SEEK_SET);
    while ((size = call_entries(folder, entries, sizeof entries)) > 0)
        for (long at = 0; at < size;) {
            const call_entry *entry = (const call_entry *)(entries + at);
            const char *shown = entry->name;
            uint8_t type = entry->type;
            at += entry->size;
            bool is_marker = !real && strncmp(shown, FILES_MARK, mark) == 0;
            if (is_marker != markers)
                continue;
            if (is_marker) {
                char kind;
                shown += mark;
                if (strlen(path) + strlen(shown) + 2 > sizeof name)
                    continue;
                strcpy(name, path);
                strcat(strcat(name, "/"), shown);
                if (!files_marker(layer, name, &kind) || kind != 'g')
                    continue;
                type = HIDDEN;
            }
            if (!real && *slot_of(*listing, shown))
                continue;
            const call_entry *added = append(listing, entry->inode, type, shown);
            if (!added || (!real && !remember(*listing, added)))
                return false;
        }
    return size == 0;
}

static bool read_names(files_listing **listing, const files_found *found, int layer) {
    char place[FILES_PATH_MAX];
    if (!(found->visible & 1u << layer))
        return true;
    if (files_place_in(layer, found->path, place) != 0)
        return false;
    bool real = layer == files_layer_count();
    int folder = call_open(place, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    if (folder < 0)
        return errno == ENOENT && !real; /* notes that may come */
    bool done = read_layer(listing, folder, found->path, layer, false) &&
                (real || read_layer(listing, folder, found->path, layer, true));
    int reason = errno;
    close(folder);
    errno = reason;
    return done;
}

/* The real names are read first, since no note may follow that is about one of them, and hidden by what the layers have. */
static files_listing *read_all(const files_found *found) {
    int real = files_layer_count();
    files_listing *l = map(FIRST_BYTES);
    if (!l)
        return NULL;
    l->size = FIRST_BYTES;
    l->slot_count = 256;
    l->slots = map(l->slot_count * sizeof *l->slots);
    bool done = l->slots && read_names(&l, found, real);
    size_t real_bytes = l->used;
    for (int i = 0; done && i < real; i++)
        done = read_names(&l, found, i);
    if (!done) {
        int reason = errno;
        files_listing_close(l);
        errno = reason;
        return NULL;
    }
    for (size_t at = 0; at < real_bytes;) {
        call_entry *entry = (call_entry *)(l->entries + at);
        if (*slot_of(l, entry->name))
            entry->type = HIDDEN;
        at += entry->size;
    }
    return l;
}

files_listing *files_listing_open(const files_found *found) {
    files_listing *l = read_all(found);
    files_found again = *found;
    int overtaken = found->outside ? 0 : files_find_again(&again);
    if (!overtaken)
        return l;
    if (l)
        files_listing_close(l);
    return overtaken > 0 ? read_all(&again) : NULL;
}

void *files_listing_next(files_listing *l) {
    while (l->at < l->used) {
        call_entry *entry = (call_entry *)(l->entries + l->at);
        l->at += entry->size;
        if (entry->type != HIDDEN)
            return entry;
    }
    return NULL;
}

size_t files_listing_position(const files_listing *l) {
    return l->at;
}

void files_listing_seek(files_listing *l, size_t position) {
    if (position <= l->used)
        l->at = position;
}

void files_listing_close(files_listing *l) {
    if (l->slots)
        munmap(l->slots, l->slot_count * sizeof *l->slots);
    munmap(l, l->size);
}

int files_is_empty(const files_found *found) {
    files_listing *names = files_listing_open(found);
    if (!names)
        return -1;
    int empty = 1;
    for (const call_entry *entry; empty && (entry = files_listing_next(names));)
        empty = strcmp(entry->name, ".") == 0 || strcmp(entry->name, "..") == 0;
    files_listing_close(names);
    return empty;
}
