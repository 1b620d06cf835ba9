#include "report.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define USAGE "usage: castor report DIR [--format text|json|perfetto] [-o FILE]\n"

#define STATUS_MADE    0
#define STATUS_PARTIAL 1
#define STATUS_NOTHING 2

typedef void (*report_writer)(const report *report, FILE *out);

static const struct {
    const char *name;
    report_writer write;
} formats[] = {{"text", report_write_text}, {"json", report_write_json}, {"perfetto", report_write_perfetto}};

typedef struct report_options {
    const char *directory, *output;
    report_writer write;
} report_options;

static report_writer find_format(const char *name) {
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (strcmp(formats[i].name, name) == 0)
            return formats[i].write;
    return NULL;
}

/* The value of option `name` at argv[*index]: `--name VALUE`, `--name=VALUE`. NULL when it is another option.
 */
static const char *option_value(int argc, char **argv, int *index, const char *name) {
    const char *argument = argv[*index];
    size_t length = strlen(name);
    if (strncmp(argument, name, length) != 0)
        return NULL;
    if (argument[length] == '=' && name[1] == '-')
        return argument + length + 1;
    if (argument[length] != '\0')
        return NULL;
    return *index + 1 < argc ? argv[++*index] : "";
}

static int parse_arguments(int argc, char **argv, report_options *options) {
    *options = (report_options){.write = report_write_text};
    for (int i = 1; i < argc; i++) {
        const char *value;
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            fputs(USAGE, stdout);
            return STATUS_MADE;
        }
        if ((value = option_value(argc, argv, &i, "--format")) != NULL) {
            options->write = find_format(value);
            if (options->write == NULL) {
                fprintf(stderr,
                        "castor: report --format `%s` does not exist; there are: text, json, perfetto\n",
                        value);
                return STATUS_NOTHING;
            }
        } else if ((value = option_value(argc, argv, &i, "-o")) != NULL ||
                   (value = option_value(argc, argv, &i, "--output")) != NULL) {
            if (value[0] == '\0') {
                fprintf(stderr, "castor: report %s needs a file name\n" USAGE, "-o");
                return STATUS_NOTHING;
            }
            options->output = strcmp(value, "-") == 0 ? NULL : value;
        } else if (argv[i][0] == '-') {
            fprintf(stderr, "castor: report does not know the option %s\n" USAGE, argv[i]);
            return STATUS_NOTHING;
        } else if (options->directory != NULL) {
            fprintf(stderr, "castor: report takes one directory, not also %s\n" USAGE, argv[i]);
            return STATUS_NOTHING;
        } else {
            options->directory = argv[i];
        }
    }
    if (options->directory == NULL) {
        fputs("castor: report needs the log directory of a job\n" USAGE, stderr);
        return STATUS_NOTHING;
    }
    return -1;
}

/* Writes all, then gives the file its name: a reader never sees half of it. What is no regular file (a pipe,
 * /dev/null) is written as it is. */
static bool write_file(const report *report, report_writer write, const char *path) {
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
        write(report, out);
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

int report_main(int argc, char **argv) {
    report_options options;
    int status = parse_arguments(argc, argv, &options);
    if (status >= 0)
        return status;
    report report;
    status = STATUS_NOTHING;
    if (report_read(&report, options.directory)) {
        bool written;
        if (options.output != NULL) {
            written = write_file(&report, options.write, options.output);
        } else {
            options.write(&report, stdout);
            written = fflush(stdout) == 0 && !ferror(stdout);
            if (!written)
                fprintf(stderr, "castor: cannot write the report to standard output: %s\n", strerror(errno));
        }
        status = !written ? STATUS_NOTHING : report.problem_count > 0 ? STATUS_PARTIAL : STATUS_MADE;
    }
    report_free(&report);
    return status;
}
