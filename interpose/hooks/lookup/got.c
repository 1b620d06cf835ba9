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
#define RELOCATION_WORD R_X86_64_64
#elif defined(__aarch64__)
#define RELOCATION_JUMP R_AARCH64_JUMP_SLOT
#define RELOCATION_DATA R_AARCH64_GLOB_DAT
#define RELOCATION_WORD R_AARCH64_ABS64
#endif

typedef struct got_query {
    got_change *changes;
    unsigned count;
    uintptr_t page_size;
    const void *but;
} got_query;

/* The linker makes the relocated pages that lie wholly in this range read-only. */
static bool is_read_only(const object_tables *object, uintptr_t address, uintptr_t page_size) {
    return address >= (object->relro_begin & -page_size) && address < (object->relro_end & -page_size);
}

static bool holds(const object_tables *object, const void *address) {
    return (uintptr_t)address - object->begin < object->end - object->begin;
}

static const Elf64_Sym *symbol_of(const object_tables *object, const Elf64_Rela *rela) {
    return &object->symbols[ELF64_R_SYM(rela->r_info)];
}

/* In a program at a fixed address, a function's address is that of the program's own jump to it. Look-ups find this jump, the linker
 * does not bind entries to it. */
static int program_jump_visit(struct dl_phdr_info *info, size_t size, void *context) {
    got_change *jump = context;
    object_tables object;
    (void)size;
    if (!objects_read(info, &object) || !holds(&object, jump->from))
        return 0;
    for (size_t i = 0; i < object.rela_count[1] && !jump->written; i++) {
        const Elf64_Sym *symbol = symbol_of(&object, &object.rela[1][i]);
        jump->written = symbol->st_shndx == SHN_UNDEF &&
                        (void *)(object.base + symbol->st_value) == jump->from &&
                        strcmp(object.strings + symbol->st_name, jump->name) == 0;
    }
    return 1;
}

static bool is_program_jump(const char *name, void *address) {
    got_change jump = {.name = name, .from = address};
    if (address)
        dl_iterate_phdr(program_jump_visit, &jump);
    return jump.written != 0;
}

/* An entry that is not bound yet leads back into its own object. What will it be bound to? */
static bool will_lead_to(const struct dl_phdr_info *info, const got_change *change) {
    void *found = loader_symbol(RTLD_DEFAULT, change->name);
    if (is_program_jump(change->name, found))
        found = loader_symbol(RTLD_NEXT, change->name);
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
    if (!objects_read(info, &object) || holds(&object, (void *)object_rewrite) ||
        (query->but && holds(&object, query->but)))
        return 0;
    for (int table = 0; table < 2; table++) {
        for (size_t i = 0; i < object.rela_count[table]; i++) {
            const Elf64_Rela *rela = &object.rela[table][i];
            uint32_t type = ELF64_R_TYPE(rela->r_info);
            if (type != RELOCATION_JUMP && type != RELOCATION_DATA &&
                (type != RELOCATION_WORD || rela->r_addend != 0))
                continue;
            const char *name = object.strings + symbol_of(&object, rela)->st_name;
            for (unsigned c = 0; c < query->count; c++) {
                got_change *change = &query->changes[c];
                if (strcmp(name, change->name) != 0)
                    continue;
                void **entry = (void **)(object.base + rela->r_offset),
                     *now = __atomic_load_n(entry, __ATOMIC_ACQUIRE);
                bool unbound = type == RELOCATION_JUMP && holds(&object, now) && now != change->from;
                if ((now == change->from || (unbound && will_lead_to(info, change))) &&
                    entry_write(&object, entry, change->to, query->page_size))
                    change->written++;
            }
        }
    }
    return 0;
}

void got_rewrite(got_change *changes, unsigned count, const void *but) {
    got_query query = {
        .changes = changes, .count = count, .page_size = (uintptr_t)sysconf(_SC_PAGESIZE), .but = but};
    dl_iterate_phdr(object_rewrite, &query);
}
