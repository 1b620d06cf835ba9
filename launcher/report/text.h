/* The parts of the report as text. */
#ifndef CASTOR_LAUNCHER_REPORT_TEXT_H
#define CASTOR_LAUNCHER_REPORT_TEXT_H

#include "launcher/common/text_table.h"
#include "report.h"

#define REPORT_TEXT_CALLS   20
#define REPORT_TEXT_CLASSES 30
#define REPORT_TEXT_SLOWEST 10

/* Zero is unknown, and shown as a dash. */
void report_text_bytes_cell(text_table *table, uint64_t bytes);
void report_text_seconds_cell(text_table *table, double seconds);

void report_text_about(const report *report, FILE *out);
void report_text_budgets(const report *report, FILE *out);
void report_text_memory(const report *report, FILE *out);
void report_text_devices(const report *report, FILE *out);
void report_text_pipeline(const report *report, FILE *out);
void report_text_collectives(const report *report, FILE *out);
void report_text_counters(const report_counters *counters, const char *title, const char *heading,
                          size_t shown, FILE *out);
void report_text_slowest(const report *report, FILE *out);

#endif
