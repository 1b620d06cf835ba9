/* The parts of the report as text. */
#ifndef CASTOR_LAUNCHER_REPORT_TEXT_H
#define CASTOR_LAUNCHER_REPORT_TEXT_H

#include "launcher/common/text_table.h"
#include "report.h"

#define REPORT_TEXT_CALLS   20
#define REPORT_TEXT_CLASSES 30
#define REPORT_TEXT_SLOWEST 10

void report_text_about(const report *report, FILE *out);
void report_text_budgets(const report *report, FILE *out);

#endif
