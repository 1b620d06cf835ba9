/* The report as JSON (docs/report.md), also the data inside of the HTML page. */
#ifndef CASTOR_LAUNCHER_REPORT_REPORT_JSON_H
#define CASTOR_LAUNCHER_REPORT_REPORT_JSON_H

#include "launcher/common/json.h"
#include "report.h"

/* Limits for readers: timelines of more points are thinned out (the highest value counts), tables cut. */
typedef struct report_limits {
    uint32_t memory_points, step_points; /* of each rank */
    size_t rows;                         /* of each table */
    size_t passes;                       /* of a pipeline's chart: whole ranks, as many as fit */
} report_limits;

void report_json_object(json_writer *json, const report *report, const report_limits *limits);

/* Options, versions and machine of the run. */
void report_json_about(json_writer *json, const report *report);
/* Memory of nodes and devices beside its budget. */
void report_json_budgets(json_writer *json, const report *report, const report_limits *limits);

/* A timeline: the highest of each `together` values. */
void report_json_highest(json_writer *json, const char *key, const uint64_t *values, uint32_t buckets,
                         uint32_t together);

#endif
