/* Numbers of options, as text. Without the C library's functions, which depend on the locale. */
#ifndef CASTOR_JOB_OPTION_TEXT_H
#define CASTOR_JOB_OPTION_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What messages and lists of options say about sizes. */
#define OPTION_BYTES_NOTE "K, M, G and T, also written KB or KiB, are powers of 1024"

/* Each parser reads a value that ends at a NUL or at "..", so that it also reads the bounds of the table. False: no number. */
bool option_text_parse_integer(const char *p, int64_t *out);
/* With the suffix K, M, G or T, powers of 1024; "KB" and "KiB" say the same as "K". In any case. */
bool option_text_parse_bytes(const char *p, uint64_t *out);
bool option_text_parse_decimal(const char *p, double *out);

/* "32M", or the plain number when it is no multiple. Both return the length. */
size_t option_text_format_bytes(uint64_t bytes, char *out, size_t out_size);
size_t option_text_format_decimal(double value, char *out, size_t out_size);

#endif
