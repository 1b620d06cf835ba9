#include "maps.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/table.h"

typedef struct mapping {
    uintptr_t begin, end;
    maps_kind kind;
} mapping;

struct hold_maps {
    mapping *list; /* by address */
    uint32_t count, capacity;
};

static const char *const store_files[] = {"/memfd:castor-param", "/memfd:castor-optim"};

/* The fields of a line: range, permissions, offset, device, inode, name. */
static maps_kind kind_of(const char *permissions, const char *name) {
    if (permissions[0] != 'r' || permissions[1] != 'w' || permissions[3] != 'p')
        return MAPS_OTHER;
    if (!*name || strcmp(name, "[heap]") == 0 || strncmp(name, "[anon:", 6) == 0)
        return MAPS_OWN;
    for (unsigned i = 0; i < sizeof store_files / sizeof *store_files; i++)
        if (strncmp(name, store_files[i], strlen(store_files[i])) == 0)
            return MAPS_STORE;
    return MAPS_OTHER;
}

static bool line_add(hold_maps *maps, const char *line) {
    char *at;
    uintptr_t begin = strtoull(line, &at, 16);
    if (*at != '-')
        return true;
    uintptr_t end = strtoull(at + 1, &at, 16);
    const char *permissions = ++at, *name = permissions;
    for (int field = 0; field < 4 && *name; field++) {
        name += strcspn(name, " ");
        name += strspn(name, " ");
    }
    maps_kind kind = kind_of(permissions, name);
    mapping *before = maps->count ? &maps->list[maps->count - 1] : NULL;
    if (before && before->end == begin && before->kind == kind) {
        before->end = end;
        return true;
    }
    mapping *list = table_room(maps->list, &maps->capacity, maps->count, sizeof *list);
    if (!list)
        return false;
    maps->list = list;
    list[maps->count++] = (mapping){begin, end, kind};
    return true;
}

#define TEXT_BYTES (64u << 10)

hold_maps *hold_maps_read(void) {
    hold_maps *maps = calloc(1, sizeof *maps);
    char *text = malloc(TEXT_BYTES + 1);
    int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    bool good = maps && text && fd >= 0;
    for (size_t held = 0; good;) {
        ssize_t got = read(fd, text + held, TEXT_BYTES - held);
        if (got < 0 && errno == EINTR)
            continue;
        good = got >= 0;
        if (got <= 0)
            break;
        char *line = text, *end;
        text[held += (size_t)got] = 0;
        for (; good && (end = strchr(line, '\n')) != NULL; line = end + 1) {
            *end = 0;
            good = line_add(maps, line);
        }
        held -= (size_t)(line - text);
        memmove(text, line, held);
        good = good && held < TEXT_BYTES;
    }
    if (fd >= 0)
        close(fd);
    free(text);
    if (good)
        return maps;
    hold_maps_free(maps);
    return NULL;
}

void hold_maps_free(hold_maps *maps) {
    if (maps)
        free(maps->list);
    free(maps);
}

maps_kind maps_kind_of(const hold_maps *maps, uintptr_t begin, uintptr_t end) {
    uint32_t low = 0, high = maps->count;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (maps->list[middle].end <= begin)
            low = middle + 1;
        else
            high = middle;
    }
    const mapping *m = low < maps->count ? &maps->list[low] : NULL;
    return m && m->begin <= begin && end <= m->end ? m->kind : MAPS_OTHER;
}
