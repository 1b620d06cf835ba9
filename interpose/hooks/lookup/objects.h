/* The loaded objects (program and libraries) of this process, and their dynamic tables. Private to hooks/.
 *
 * Nothing here allocates or calls dlsym, because the real dlsym itself is found here. Nor does a look-up compare text with the
 * C library's functions: in a program with AddressSanitizer these are its own, and look up the real ones first. */
#ifndef CASTOR_HOOKS_LOOKUP_OBJECTS_H
#define CASTOR_HOOKS_LOOKUP_OBJECTS_H

#include <link.h>
#include <stdbool.h>
#include <stdint.h>

/* An object's dynamic section, with its addresses in memory; NULL or 0: the object has none. */
typedef struct object_tables {
    uintptr_t base, begin, end;
    const Elf64_Sym *symbols;
    const char *strings;
    const uint16_t *versions;  /* per symbol: DT_VERSYM */
    const uint32_t *gnu_hash;  /* DT_GNU_HASH */
    const Elf64_Rela *rela[2]; /* DT_RELA and DT_JMPREL */
    size_t rela_count[2];
    uintptr_t relro_begin, relro_end;
} object_tables;

static inline bool objects_text_equal(const char *one, const char *other) {
    while (*one && *one == *other)
        one++, other++;
    return *one == *other;
}

/* False where the object has no symbols. */
bool objects_read(const struct dl_phdr_info *info, object_tables *out);

/* Both addresses lie in one object. */
bool objects_same(const void *one, const void *other);

/* A number that changes when a library is loaded. */
uint64_t objects_generation(void);

#endif
