#include "report.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/log.h"
#include "launcher/common/command_line.h"
#include "launcher/job/runs.h"
#include "collective_statistics.h"
#include "compare.h"
#include "pipeline_passes.h"
#include "report_json.h"

/* The report as one page that needs nothing else: its style and its script (launcher/page) are part of the program, its
 * data is the report's JSON, thinned out so that the page stays small. The page's policy forbids it any network. */

#define ROWS_SHOWN       200
#define TEXT_SHOWN       300
#define PASSES_SHOWN     4000   /* some 90 bytes of data each */
#define MEMORY_BYTES_MAX 900000 /* of the data, for timelines of memory */
#define POINTS_MAX       400

#define EMBED(symbol, path)                                                                                  \
    __asm__(".pushsection .rodata\n.globl " #symbol "\n" #symbol ":\n.incbin \"" path                        \
            "\"\n.byte 0\n.popsection\n");                                                                   \
    extern const char symbol[] __attribute__((visibility("hidden")))

EMBED(report_page_style, "launcher/report/page/report.css");
EMBED(report_page_script, "launcher/report/page/report.js");

void report_write_escaped(const char *text, FILE *out) {
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
    report_write_escaped(title, out);
    if (other != NULL) {
        fputs(" beside ", out);
        report_write_escaped(other, out);
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

static void report_compare_html(const report *a, const report *b, FILE *out) {
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

#define STATUS_MADE    0
#define STATUS_PARTIAL 1
#define STATUS_NOTHING 2

/* A way to show a run, and two runs beside each other (NULL: not this way); or into a folder, and not as one file. */
typedef struct report_format {
    const char *name;
    void (*write)(const report *report, FILE *out);
    void (*compare)(const report *a, const report *b, FILE *out);
    bool (*fill)(const report *report, const char *folder); /* false with errno */
} report_format;

static const report_format formats[] = {
    {"text", report_write_text, report_compare_text, NULL},
    {"json", report_write_json, report_compare_json, NULL},
    {"perfetto", report_write_perfetto, NULL, NULL},
    {"html", report_write_html, report_compare_html, NULL},
    {"prometheus", report_write_prometheus, NULL, NULL},
    {"tensorboard", NULL, NULL, report_write_tensorboard},
};

typedef struct report_options {
    const char *directories[2], *output;
    char newest[PATH_MAX]; /* where no directory was named */
    int directory_count;
    const report_format *format;
} report_options;

static const report_format *find_format(const char *name) {
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (strcmp(formats[i].name, name) == 0)
            return &formats[i];
    return NULL;
}

static int parse_arguments(int argc, char **argv, report_options *options) {
    *options = (report_options){.format = &formats[0]};
    command_line line = {SUBCOMMAND_report, argc, argv, 1, NULL};
    for (bool more = true; more;) {
        switch (command_line_next(&line)) {
        case ARGUMENT_report_format:
            options->format = find_format(line.value);
            break;
        case ARGUMENT_report_output:
            if (line.value[0] == '\0') {
                LOG_E("report: -o: the file's name is empty");
                return STATUS_NOTHING;
            }
            options->output = strcmp(line.value, "-") == 0 ? NULL : line.value;
            break;
        case COMMAND_LINE_WORD:
            if (options->directory_count == 2) {
                LOG_E("report: takes one directory, or two to compare; not also %s", line.value);
                return STATUS_NOTHING;
            }
            options->directories[options->directory_count++] = line.value;
            break;
        case COMMAND_LINE_HELP:
            command_help_write(line.command, stdout);
            return STATUS_MADE;
        case COMMAND_LINE_WRONG:
            return STATUS_NOTHING;
        default:
            more = false;
        }
    }
    if (options->format->fill != NULL && options->output == NULL) {
        LOG_E("report: --format %s fills a folder, and -o names it: -o FOLDER; then tensorboard --logdir "
              "FOLDER",
              options->format->name);
        return STATUS_NOTHING;
    }
    if (options->directory_count == 0) {
        if (!job_runs_newest(options->newest, sizeof options->newest)) {
            LOG_E("report: there is no run in ./" JOB_RUNS_PARENT
                  "; name its log directory: castor report DIR");
            return STATUS_NOTHING;
        }
        LOG_I("report: the newest run: %s", options->newest);
        options->directories[options->directory_count++] = options->newest;
    }
    if (options->directory_count == 2 && options->format->compare == NULL) {
        LOG_E("report: --format %s shows one run; two are compared with --format text, json or html",
              options->format->name);
        return STATUS_NOTHING;
    }
    return -1;
}

static void write_report(const report reports[2], const report_options *options, FILE *out) {
    if (options->directory_count == 2)
        options->format->compare(&reports[0], &reports[1], out);
    else
        options->format->write(&reports[0], out);
}

/* Writes all, then gives the file its name: a reader never sees half of it. What is no regular file (a pipe,
 * /dev/null) is written as it is. */
static bool write_file(const report reports[2], const report_options *options) {
    const char *path = options->output;
    struct stat status;
    bool in_place = stat(path, &status) == 0 && !S_ISREG(status.st_mode);
    char *temporary = NULL;
    if (!in_place && asprintf(&temporary, "%s.%ld.partial", path, (long)getpid()) < 0)
        temporary = NULL;
    const char *name = in_place ? path : temporary;
    int flags = in_place ? O_WRONLY | O_CLOEXEC : O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    int fd = name == NULL ? -1 : open(name, flags, 0600); /* a command line may hold secrets */
    FILE *out = fd < 0 ? NULL : fdopen(fd, "w");
    bool written = false;
    if (out != NULL) {
        write_report(reports, options, out);
        written = !ferror(out);
        written &= fclose(out) == 0;
        if (written && !in_place)
            written = rename(name, path) == 0;
    } else if (fd >= 0) {
        close(fd);
    }
    int error = errno;
    if (!written) {
        if (fd >= 0 && !in_place)
            unlink(name);
        fprintf(stderr, "castor: cannot write the report to %s: %s\n", path, strerror(error));
    }
    free(temporary);
    return written;
}

static bool write_output(const report reports[2], const report_options *options) {
    if (options->format->fill != NULL) {
        bool filled = options->format->fill(&reports[0], options->output);
        if (!filled)
            fprintf(stderr, "castor: cannot write the report to %s: %s\n", options->output, strerror(errno));
        return filled;
    }
    if (options->output != NULL)
        return write_file(reports, options);
    write_report(reports, options, stdout);
    bool written = fflush(stdout) == 0 && !ferror(stdout);
    if (!written)
        fprintf(stderr, "castor: cannot write the report to standard output: %s\n", strerror(errno));
    return written;
}

int report_main(int argc, char **argv) {
    report_options options;
    int status = parse_arguments(argc, argv, &options);
    if (status >= 0)
        return status;
    static report reports[2];
    bool complete = true;
    for (int i = 0; i < options.directory_count && complete; i++)
        complete = report_read(&reports[i], options.directories[i]);
    status = STATUS_NOTHING;
    if (complete && write_output(reports, &options))
        status = reports[0].problem_count + reports[1].problem_count > 0 ? STATUS_PARTIAL : STATUS_MADE;
    for (int i = 0; i < 2; i++)
        report_free(&reports[i]);
    return status;
}
