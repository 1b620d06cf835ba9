#include "got.h"
#include <dlfcn.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "loader.h"
#include "objects.h"

#if defined(__x86_64__)
#define RELOCATION_JUMP R_X86_64_JUMP_SLOT
#define RELOCATION_DATA R_X86_64_GLOB_DAT
#elif defined(__aarch64__)
#define RELOCATION_JUMP R_AARCH64_JUMP_SLOT
#define RELOCATION_DATA R_AARCH64_GLOB_DAT
#endif

typedef struct got_query {
    const got_change *changes;
    unsigned count, written;
    uintptr_t page_size;
} got_query;

/* The linker makes the relocated pages that lie wholly in this range read-only. */
static bool is_read_only(const object_tables *object, uintptr_t address, uintptr_t page_size) {
    return address >= (object->relro_begin & -page_size) && address < (object->relro_end & -page_size);
}

/* An entry that is not bound yet leads back into its own object. What will it be bound to? */
static bool will_lead_to(const struct dl_phdr_info *info, const got_change *change) {
    void *found = loader_symbol(RTLD_DEFAULT, change->name);
    if (!found && info->dlpi_name[0]) {
        void *object = loader_open(info->dlpi_name);
        found = object ? loader_symbol(object, change->name) : NULL;
        if (object)
            loader_close(object);
    }
    return found == change->from;
}

static bool entry_write(const object_tables *object, void **entry, void *value, uintptr_t page_size) {
    void *page = (void *)((uintptr_t)entry & -page_size);
    bool read_only = is_read_only(object, (uintptr_t)entry, page_size);
    if (read_only && mprotect(page, page_size, PROT_READ | PROT_WRITE) != 0)
        return false;
    __atomic_store_n(entry, value, __ATOMIC_RELEASE);
    if (read_only)
        mprotect(page, page_size, PROT_READ);
    return true;
}

static int object_rewrite(struct dl_phdr_info *info, size_t size, void *context) {
    got_query *query = context;
    object_tables object;
    (void)size;
    uintptr_t own = (uintptr_t)object_rewrite;
    if (!objects_read(info, &object) || own - object.begin < object.end - object.begin)
        return 0;
    for (int table = 0; table < 2; table++) {
        for (size_t i = 0; i < object.rela_count[table]; i++) {
            const Elf64_Rela *rela = &object.rela[table][i];
            uint32_t type = ELF64_R_TYPE(rela->r_info);
            if (type != RELOCATION_JUMP && type != RELOCATION_DATA)
                continue;
            const char *name = object.strings + object.symbols[ELF64_R_SYM(rela->r_info)].st_name;
            for (unsigned c = 0; c < query->count; c++) {
                const got_change *change = &query->changes[c];
                if (strcmp(name, change->name) != 0)
                    continue;
                void **entry = (void **)(object.base + rela->r_offset),
                     *now = __atomic_load_n(entry, __ATOMIC_ACQUIRE);
                bool unbound = type == RELOCATION_JUMP &&
                               (uintptr_t)now - object.begin < object.end - object.begin &&
                               now != change->from;
                if ((now == change->from || (unbound && will_lead_to(info, change))) &&
                    entry_write(&object, entry, change->to, query->page_size))
                    query->written++;
            }
        }
    }
    return 0;
}

unsigned got_rewrite(const got_change *changes, unsigned count) {
    got_query query = {.changes = changes, .count = count, .page_size = (uintptr_t)sysconf(_SC_PAGESIZE)};
    dl_iterate_phdr(object_rewrite, &query);
    return query.written;
}
