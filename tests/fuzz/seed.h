/* Files of a corpus. */
#ifndef CASTOR_TESTS_FUZZ_SEED_H
#define CASTOR_TESTS_FUZZ_SEED_H

#include <stdio.h>
#include <stdlib.h>

/* Ends the program when the file cannot be made. */
static inline void write_seed(const char *corpus, const char *name, const void *data, size_t size) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", corpus, name);
    FILE *out = fopen(path, "we");
    if (out == NULL || fwrite(data, 1, size, out) != size || fclose(out) != 0) {
        perror(path);
        exit(1);
    }
}

#endif
