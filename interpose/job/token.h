/* The secret of a job: a process that knows it may get everything that a rank has. */
#ifndef CASTOR_JOB_TOKEN_H
#define CASTOR_JOB_TOKEN_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#define TOKEN_MAX 64 /* characters, the end included */

/* Copies a token into a message, padded with zeros. */
static inline void token_copy(char out[TOKEN_MAX], const char *token) {
    memset(out, 0, TOKEN_MAX);
    memcpy(out, token, strnlen(token, TOKEN_MAX - 1));
}

/* Takes the same time for all tokens, however many characters agree. */
static inline bool tokens_equal(const char a[TOKEN_MAX], const char b[TOKEN_MAX]) {
    unsigned char difference = 0;
    for (size_t i = 0; i < TOKEN_MAX; i++)
        difference |= (unsigned char)(a[i] ^ b[i]);
    return difference == 0;
}

#endif
