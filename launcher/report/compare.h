/* Two runs side by side: `castor report A B`. */
#ifndef CASTOR_LAUNCHER_REPORT_COMPARE_H
#define CASTOR_LAUNCHER_REPORT_COMPARE_H

#include "report_json.h"
#include "report.h"

typedef enum compare_unit { COMPARE_SECONDS, COMPARE_BYTES, COMPARE_COUNT, COMPARE_FIGURE } compare_unit;

/* One figure of both runs; zero: unknown. */
typedef struct compare_row {
    const char *key, *label; /* of the JSON, of the text */
    compare_unit unit;
    double a, b;
} compare_row;

#define COMPARE_ROWS 17

/* A name that either run has, with its counters in both (NULL: it has none). Sorted by the longer of the two
 * times. False when memory is out; free the list. */
typedef struct compare_name {
    const char *name;
    const report_counter *a, *b;
} compare_name;

void report_compare_text(const report *a, const report *b, FILE *out);
void report_compare_json(const report *a, const report *b, FILE *out);

/* The comparison as JSON, with at most so many names in each table. */
void report_compare_object(json_writer *json, const report *a, const report *b, size_t names_max);
/* For readers of it, members of an object: labels and units of the figures, and how many names there are of each kind. */
void report_compare_describe(json_writer *json, const report *a, const report *b);

#endif
