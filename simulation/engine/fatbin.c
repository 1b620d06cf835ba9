/* The layouts of kernels' parameters, read from what nvcc leaves in a program: a fat binary with a cubin (an ELF file)
 * for each architecture, whole, or compressed by LZ4 or Zstandard. The cubin's sections `.nv.info.KERNEL` hold a record
 * per parameter. */
#include "sim.h"

#include <dlfcn.h>
#include <elf.h>
#include <stdlib.h>
#include <string.h>

#define WRAPPER_MAGIC     0x466243b1u
#define FATBIN_MAGIC      0xba55ed50u
#define ENTRY_ELF         2
#define ENTRY_LZ4         0x2000u
#define ENTRY_ZSTD        0x8000u
#define INFO_SIZED        4    /* format: two bytes of size and a payload follow */
#define INFO_KPARAM       0x17 /* a parameter */
#define INFO_KPARAM_BYTES 12
#define CUBIN_MAX         (256u << 20)

struct wrapper {
    uint32_t magic, version;
    const void *fatbin;
};
struct fatbin_header {
    uint32_t magic;
    uint16_t version, header_bytes;
    uint64_t bytes;
};
struct entry_header {
    uint16_t kind, version;
    uint32_t header_bytes;
    uint64_t bytes;
    uint32_t compressed_bytes, options;
    uint16_t minor, major;
    uint32_t arch;
    uint32_t name_offset, name_bytes;
    uint64_t flags, zero, whole_bytes;
};

static size_t lz4_decompress(const unsigned char *in, size_t in_bytes, unsigned char *out, size_t out_bytes) {
    const unsigned char *end = in + in_bytes;
    size_t at = 0;

    while (in < end) {
        unsigned token = *in++;
        size_t literals = token >> 4, match = token & 15;
        for (unsigned more = 255; literals >= 15 && more == 255 && in < end; literals += more)
            more = *in++;
        if (literals > (size_t)(end - in) || literals > out_bytes - at)
            return 0;
        memcpy(out + at, in, literals);
        at += literals;
        in += literals;
        if (in == end)
            break;
        if (end - in < 2)
            return 0;
        size_t distance = in[0] | (size_t)in[1] << 8;
        in += 2;
        for (unsigned more = 255; match >= 15 && more == 255 && in < end; match += more)
            more = *in++;
        match += 4;
        if (!distance || distance > at || match > out_bytes - at)
            return 0;
        for (; match; match--, at++)
            out[at] = out[at - distance];
    }
    return at;
}

static size_t zstd_decompress(const void *in, size_t in_bytes, void *out, size_t out_bytes) {
    static size_t (*decompress)(void *, size_t, const void *, size_t);
    static bool looked;

    if (!looked) {
        void *library = dlopen("libzstd.so.1", RTLD_NOW | RTLD_LOCAL);
        void *symbol = library ? dlsym(library, "ZSTD_decompress") : NULL;
        memcpy(&decompress, &symbol, sizeof symbol);
        looked = true;
        if (!decompress)
            sim_say("libzstd.so.1 is missing: the arguments of kernels are not known");
    }
    size_t bytes = decompress ? decompress(out, out_bytes, in, in_bytes) : 0;
    return bytes <= out_bytes ? bytes : 0;
}

static int by_offset(const void *left, const void *right) {
    const struct sim_parameter *a = left, *b = right;

    return (a->offset > b->offset) - (a->offset < b->offset);
}

static void read_parameters(CUfunction function, const unsigned char *info, size_t bytes) {
    struct sim_parameter found[1024];
    unsigned count = 0, end = 0;

    for (size_t at = 0; at + 4 <= bytes;) {
        unsigned payload = info[at] == INFO_SIZED ? info[at + 2] | (unsigned)info[at + 3] << 8 : 0;
        if (at + 4 + payload > bytes)
            return;
        if (info[at] == INFO_SIZED && info[at + 1] == INFO_KPARAM && payload == INFO_KPARAM_BYTES &&
            count < 1024) {
            uint16_t offset;
            uint32_t word;
            memcpy(&offset, info + at + 10, sizeof offset);
            memcpy(&word, info + at + 12, sizeof word);
            found[count++] = (struct sim_parameter){offset, word >> 18};
        }
        at += 4 + payload;
    }
    qsort(found, count, sizeof *found, by_offset);
    for (unsigned i = 0; i < count; i++)
        end = found[i].offset + found[i].size;
    function->parameters = malloc((count ? count : 1) * sizeof *found);
    if (!function->parameters)
        return;
    memcpy(function->parameters, found, count * sizeof *found);
    function->parameter_count = count;
    function->parameter_bytes = end;
    function->laid_out = true;
}

static void parse_cubin(CUmodule module, const unsigned char *elf, size_t bytes) {
    static const char prefix[] = ".nv.info.";
    Elf64_Ehdr header;
    Elf64_Shdr names, section;

    if (bytes < sizeof header || memcmp(elf, ELFMAG, SELFMAG) != 0)
        return;
    memcpy(&header, elf, sizeof header);
    if (header.e_shoff > bytes || (uint64_t)header.e_shnum * sizeof section > bytes - header.e_shoff ||
        header.e_shstrndx >= header.e_shnum)
        return;
    memcpy(&names, elf + header.e_shoff + (size_t)header.e_shstrndx * sizeof names, sizeof names);
    if (names.sh_offset > bytes || names.sh_size > bytes - names.sh_offset || !names.sh_size ||
        elf[names.sh_offset + names.sh_size - 1])
        return;
    for (size_t i = 0; i < header.e_shnum; i++) {
        memcpy(&section, elf + header.e_shoff + i * sizeof section, sizeof section);
        if (section.sh_name >= names.sh_size || section.sh_offset > bytes ||
            section.sh_size > bytes - section.sh_offset)
            continue;
        const char *name = (const char *)elf + names.sh_offset + section.sh_name;
        if (strncmp(name, prefix, sizeof prefix - 1) != 0)
            continue;
        name += sizeof prefix - 1;
        CUfunction function = sim_function_by_name(module, name);
        if (!function && module->loaded)
            function = sim_function_add(module, strdup(name), NULL);
        if (function && !function->laid_out)
            read_parameters(function, elf + section.sh_offset, section.sh_size);
    }
}

static void parse_entry(CUmodule module, const struct entry_header *entry) {
    const unsigned char *payload = (const unsigned char *)entry + entry->header_bytes;
    size_t bytes = 0;

    if (!(entry->flags & (ENTRY_LZ4 | ENTRY_ZSTD))) {
        parse_cubin(module, payload, entry->bytes);
        return;
    }
    unsigned char *whole = entry->whole_bytes <= CUBIN_MAX ? malloc(entry->whole_bytes) : NULL;
    if (!whole)
        return;
    if (entry->flags & ENTRY_ZSTD)
        bytes = zstd_decompress(payload, entry->compressed_bytes, whole, entry->whole_bytes);
    else
        bytes = lz4_decompress(payload, entry->compressed_bytes, whole, entry->whole_bytes);
    parse_cubin(module, whole, bytes);
    free(whole);
}

/* The cubin that a device of our compute capability would take: the newest of the same major version. */
static void parse_fatbin(CUmodule module, const unsigned char *image) {
    const struct sim_config *config = sim_config();
    const struct entry_header *best = NULL, *any = NULL;
    struct fatbin_header header;

    memcpy(&header, image, sizeof header);
    const unsigned char *at = image + header.header_bytes, *end = at + header.bytes;
    while (at + sizeof(struct entry_header) <= end) {
        const struct entry_header *entry = (const void *)at;
        if (entry->kind == ENTRY_ELF) {
            int arch = (int)entry->arch;
            any = entry;
            if (arch / 10 == config->major && arch % 10 <= config->minor &&
                (!best || entry->arch >= best->arch))
                best = entry;
        }
        if (!entry->header_bytes)
            break;
        at += entry->header_bytes + entry->bytes;
    }
    if (best || any)
        parse_entry(module, best ? best : any);
}

void sim_fatbin_parse(CUmodule module) {
    uint32_t magic;
    const unsigned char *image = module->image;

    if (!image)
        return;
    memcpy(&magic, image, sizeof magic);
    if (magic == WRAPPER_MAGIC) {
        image = ((const struct wrapper *)module->image)->fatbin;
        memcpy(&magic, image, sizeof magic);
    }
    if (magic == FATBIN_MAGIC) {
        parse_fatbin(module, image);
    } else if (memcmp(image, ELFMAG, SELFMAG) == 0) {
        Elf64_Ehdr header;
        memcpy(&header, image,
               sizeof header); /* the headers of the sections are a cubin's end, or those of segments */
        size_t sections = header.e_shoff + (size_t)header.e_shnum * header.e_shentsize;
        size_t segments = header.e_phoff + (size_t)header.e_phnum * header.e_phentsize;
        parse_cubin(module, image, sections > segments ? sections : segments);
    }
}
