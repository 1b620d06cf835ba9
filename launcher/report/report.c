#include "report.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "compare.h"
#include "base/log.h"
#include "launcher/common/command_line.h"
#include "launcher/job/runs.h"

#define STATUS_MADE    0
#define STATUS_PARTIAL 1
#define STATUS_NOTHING 2

/* A way to show a run, and two runs beside each other (NULL: not this way). */
typedef struct report_format {
    const char *name;
    void (*write)(const report *report, FILE *out);
    void (*compare)(const report *a, const report *b, FILE *out);
} report_format;

static const report_format formats[] = {
    {"text", report_write_text, report_compare_text},
    {"json", report_write_json, report_compare_json},
    {"perfetto", report_write_perfetto, NULL},
    {"html", report_write_html, report_compare_html},
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
