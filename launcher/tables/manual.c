#include "manual.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include "base/log.h"
#include "job/options.h"
#include "base/version.h"
#include "launcher/common/command_line.h"
#include "tables.h"

/* Text in the language of man pages, without a line's end. What stands between backticks is bold. */
static void write_text(FILE *out, const char *text) {
    bool bold = false;
    if (*text == '.' || *text == '\'')
        fputs("\\&", out); /* else a request */
    for (; *text; text++) {
        if (*text == '`') {
            bold = !bold;
            fputs(bold ? "\\fB" : "\\fR", out);
        } else if (*text == '\\') {
            fputs("\\e", out);
        } else if (*text == '-') {
            fputs("\\-", out);
        } else {
            fputc(*text, out);
        }
    }
}

static void write_line(FILE *out, const char *text) {
    write_text(out, text);
    fputc('\n', out);
}

static void write_bold(FILE *out, const char *text) {
    fputs("\\fB", out);
    write_text(out, text);
    fputs("\\fR", out);
}

static void write_argument(FILE *out, const argument_info *row) {
    fputs(".TP\n", out);
    write_bold(out, row->name);
    if (row->also[0]) {
        fputs(", ", out);
        write_bold(out, row->also);
    }
    if (row->value[0]) {
        fputs(" \\fI", out);
        write_text(out, row->value);
        fputs("\\fR", out);
    }
    fputc('\n', out);
    write_text(out, row->doc);
    if (row->allowed[0]) {
        char choices[CHOICES_MAX][CHOICE_SIZE];
        int count = choices_split(row->allowed, choices);
        for (int i = 0; i < count; i++) {
            fputs(i > 0 ? ", " : ": ", out);
            write_bold(out, choices[i]);
        }
    }
    fputc('\n', out);
}

static void write_command(FILE *out, subcommand_id id) {
    const subcommand_info *row = &subcommand_table[id];
    fputs(".SS ", out);
    write_text(out, "castor ");
    write_line(out, row->name);
    fputc(toupper(row->doc[0]), out);
    write_text(out, row->doc + 1);
    fputs(".\n", out);
    if (row->text[0])
        write_line(out, row->text);
    for (int i = 0; i < ARGUMENT_COUNT; i++)
        if (argument_table[i].command == id)
            write_argument(out, &argument_table[i]);
}

static void write_option(FILE *out, const option_info *row) {
    fputs(".TP\n", out);
    write_bold(out, row->env);
    fputc('\n', out);
    write_text(out, row->doc);
    fputs(".\n", out);
    char *allowed = NULL;
    size_t size = 0;
    FILE *text = open_memstream(&allowed, &size);
    if (!text)
        return;
    option_write_allowed(text, row, row->allowed[0] ? "`" : "");
    fclose(text);
    fputs("Values: ", out);
    write_text(out, allowed);
    free(allowed);
    fputs(row->def[0] ? "; default: " : "; default: none", out);
    write_bold(out, row->def);
    fputs(".\n", out);
}

void manual_write(FILE *out) {
    fputs(".TH CASTOR 1 \"\" \"castor " CASTOR_VERSION "\" \"User Commands\"\n"
          ".SH NAME\n"
          "castor \\- train PyTorch models that do not fit, from training scripts that nobody edits\n"
          ".SH SYNOPSIS\n.nf\n",
          out);
    for (int id = 0; id < SUBCOMMAND_COUNT; id++)
        if (subcommand_table[id].doc) {
            char *usage = NULL;
            size_t size = 0;
            FILE *text = open_memstream(&usage, &size);
            if (!text)
                continue;
            command_usage_write((subcommand_id)id, text);
            fclose(text);
            write_line(out, usage);
            free(usage);
        }
    fputs(".fi\n.SH COMMANDS\n", out);
    for (int id = 0; id < SUBCOMMAND_COUNT; id++)
        if (subcommand_table[id].doc)
            write_command(out, (subcommand_id)id);
    fputs(".SH ENVIRONMENT\n"
          "\\fBcastor run \\-\\-set\\fR \\fINAME=VALUE\\fR sets an option for a run. In "
          "sizes " OPTION_BYTES_NOTE ".\n",
          out);
    for (int id = 0; id < OPTION_COUNT; id++)
        if (!option_table[id].internal)
            write_option(out, &option_table[id]);
    fputs(".SH EXAMPLES\n.nf\n", out);
    write_text(out, COMMAND_EXAMPLES);
    fputs(".fi\n", out);
}

int manual_main(int argc, char **argv) {
    if (argc > 1) {
        LOG_E("manual: %s: unknown argument; it takes none", argv[1]);
        return 2;
    }
    manual_write(stdout);
    if (fflush(stdout) != 0) {
        LOG_E("standard output cannot be written");
        return 1;
    }
    return 0;
}
