/* A cubin as far as the simulation reads it: an ELF file with the parameters of one kernel,
 * (int *out, const int *in, int number). */
#ifndef SIM_PROGRAMS_CUBIN_H
#define SIM_PROGRAMS_CUBIN_H

#include <elf.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

struct cubin_parameter {
    uint8_t format, attribute;
    uint16_t bytes;
    uint32_t index;
    uint16_t ordinal, offset;
    uint32_t size_and_more;
};

struct cubin {
    Elf64_Ehdr header;
    struct cubin_parameter parameters[3];
    char names[64];
    Elf64_Shdr sections[3];
};

static inline const void *cubin_make(const char *kernel) {
    static struct cubin cubin;
    static const uint16_t offsets[] = {0, 8, 16};
    static const uint32_t sizes[] = {8, 8, 4};

    memset(&cubin, 0, sizeof cubin);
    memcpy(cubin.header.e_ident, ELFMAG, SELFMAG);
    cubin.header.e_shoff = offsetof(struct cubin, sections);
    cubin.header.e_shentsize = sizeof(Elf64_Shdr);
    cubin.header.e_shnum = 3;
    cubin.header.e_shstrndx = 1;
    snprintf(cubin.names + 1, sizeof cubin.names - 1, ".nv.info.%s", kernel);
    for (unsigned i = 0; i < 3; i++) {
        cubin.parameters[i] =
            (struct cubin_parameter){4, 0x17, 12, 0, (uint16_t)i, offsets[i], sizes[i] << 18};
    }
    cubin.sections[1] =
        (Elf64_Shdr){.sh_offset = offsetof(struct cubin, names), .sh_size = sizeof cubin.names};
    cubin.sections[2] = (Elf64_Shdr){
        .sh_name = 1, .sh_offset = offsetof(struct cubin, parameters), .sh_size = sizeof cubin.parameters};
    return &cubin;
}

#endif
