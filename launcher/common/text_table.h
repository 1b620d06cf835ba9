/* A table of text whose columns are aligned when it is printed. */
#ifndef CASTOR_LAUNCHER_COMMON_TEXT_TABLE_H
#define CASTOR_LAUNCHER_COMMON_TEXT_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define TEXT_TABLE_COLUMNS 12

typedef struct text_table {
    const char *
        headings[TEXT_TABLE_COLUMNS]; /* NULL ends them; the first column is aligned left, the others right */
    unsigned left;                    /* bit n: so is column n */
    char **cells;
    size_t cell_count, cell_capacity;
    bool failed;
} text_table;

/* Adds a cell; rows are filled from the left. printf's conversions. */
__attribute__((format(printf, 2, 3))) void text_table_add(text_table *table, const char *format, ...);
/* Prints and empties the table. False when memory ran out on the way. */
bool text_table_print(text_table *table, FILE *out, int indent);
void text_table_drop(text_table *table); /* empties it */

/* A line of `columns` blocks (UTF-8), each as high as the highest of its part of the values. `out` takes 3 bytes for each
 * column, and one. */
void text_sparkline(char *out, int columns, const uint64_t *values, size_t count, uint64_t highest);

/* Figures for people, in `out`: "3.2 MiB", "1.25 s", "12,345". */
#define TEXT_FIGURE_MAX 48
const char *text_bytes(char out[TEXT_FIGURE_MAX], uint64_t bytes);
const char *text_seconds(char out[TEXT_FIGURE_MAX], double seconds);
const char *text_rate(char out[TEXT_FIGURE_MAX],
                      double bytes_per_second); /* "1.25 GB/s", 10^9 as NCCL's tests */
const char *text_count(char out[TEXT_FIGURE_MAX], uint64_t count);
/* Without the fraction. A figure beyond the type, from damaged files, becomes the largest. */
uint64_t text_whole(double value);

#endif
