/* The report as one page that needs nothing else: its style and its script (launcher/page) are part of the program, its
 * data is the report's JSON, thinned out so that the page stays small. The page's policy forbids it any network. */
#include "collective_statistics.h"
#include "compare.h"
#include "report_json.h"
#include "pipeline_passes.h"

#define ROWS_SHOWN       200
#define TEXT_SHOWN       300
#define PASSES_SHOWN     4000   /* some 90 bytes of data each */
#define MEMORY_BYTES_MAX 900000 /* of the data, for timelines of memory */
#define POINTS_MAX       400

#define EMBED(symbol, path)                                                                                  \
    __asm__(".pushsection .rodata\n" #symbol ":\n.incbin \"" path "\"\n.byte 0\n.popsection\n");             \
    extern const char symbol[] __attribute__((visibility("hidden")))

EMBED(report_page_style, "launcher/report/page/report.css");
EMBED(report_page_script, "launcher/report/page/report.js");

static void write_title(const char *text, FILE *out) {
    for (; *text != '\0'; text++) {
        switch (*text) {
        case '<':
            fputs("&lt;", out);
            break;
        case '>':
            fputs("&gt;", out);
            break;
        case '&':
            fputs("&amp;", out);
            break;
        default:
            fputc(*text, out);
        }
    }
}

static report_limits find_limits(const report *report) {
    size_t ranks = report->rank_count < ROWS_SHOWN ? report->rank_count : ROWS_SHOWN;
    size_t bytes_per_point = (size_t)REPORT_MEMORY_COUNT * 11;
    size_t points = MEMORY_BYTES_MAX / (bytes_per_point * (ranks == 0 ? 1 : ranks));
    uint32_t shown = points < POINTS_MAX ? (uint32_t)points : POINTS_MAX;
    return (report_limits){
        .memory_points = shown, .step_points = shown, .rows = ROWS_SHOWN, .passes = PASSES_SHOWN};
}

/* What each kind of memory is, and what was left out of the tables, for the page to say. */
static void write_kinds(json_writer *json) {
    static const char *const roles[] = {"stacked", "whole", "node", "tier", "budget", "link"};
    json_object_begin(json, "memory");
    for (int kind = 0; kind < REPORT_MEMORY_COUNT; kind++)
        json_string(json, report_memory_label(kind), roles[report_memory_role_of(kind)]);
    json_object_end(json);
}

static void write_totals(json_writer *json, const report *report) {
    json_object_begin(json, NULL);
    json_unsigned(json, "ranks", report->rank_count);
    json_unsigned(json, "nodes", report->node_count);
    json_unsigned(json, "stages", report->pipeline == NULL ? 0 : report->pipeline->stage_count);
    json_unsigned(json, "calls", report->calls.count);
    json_unsigned(json, "classes", report->matched->class_count);
    write_kinds(json);
    json_object_end(json);
}

/* Everything up to the first data. */
static void begin_page(FILE *out, const char *title, const char *other) {
    fputs("<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
          "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
          "style-src 'unsafe-inline'; script-src 'unsafe-inline'\">\n"
          "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>",
          out);
    write_title(title, out);
    if (other != NULL) {
        fputs(" beside ", out);
        write_title(other, out);
    }
    fputs(" - castor report</title>\n<style>\n", out);
    fputs(report_page_style, out);
    fputs("</style>\n</head>\n<body>\n"
          "<noscript>This page draws its tables with the script inside of it; `castor report DIR` shows them "
          "as text.</noscript>\n<main id=\"page\"></main>\n"
          "<script type=\"application/json\" id=\"totals\">",
          out);
}

static const char between[] = "</script>\n<script type=\"application/json\" id=\"data\">";

static void end_page(FILE *out) {
    fputs("</script>\n<script>\n", out);
    fputs(report_page_script, out);
    fputs("</script>\n</body>\n</html>\n", out);
}

static json_writer writer_of(FILE *out) {
    return (json_writer){.out = out, .compact = true, .in_html = true, .text_max = TEXT_SHOWN};
}

void report_write_html(const report *report, FILE *out) {
    report_limits limits = find_limits(report);
    json_writer totals = writer_of(out), data = writer_of(out);
    begin_page(out, report->job, NULL);
    write_totals(&totals, report);
    fputs(between, out);
    report_json_object(&data, report, &limits);
    end_page(out);
}

void report_compare_html(const report *a, const report *b, FILE *out) {
    json_writer totals = writer_of(out), data = writer_of(out);
    begin_page(out, b->job, a->job);
    json_object_begin(&totals, NULL);
    write_kinds(&totals);
    report_compare_describe(&totals, a, b);
    json_object_end(&totals);
    fputs(between, out);
    report_compare_object(&data, a, b, ROWS_SHOWN);
    end_page(out);
}
