#include "tables.h"

#include <string.h>
#include <unistd.h>
#include "base/log.h"
#include "job/options.h"
#include "hooks/table/hooks.h"
#include "launcher/common/command_line.h"

enum { EXIT_USAGE = 2 };

/* ---- options ---- */

void option_write_allowed(FILE *out, const option_info *row, const char *quote) {
    const char *range = strstr(row->allowed, "..");
    if (!row->allowed[0]) {
        fputs("text", out);
        return;
    }
    if (strcmp(row->type, "ENUM") != 0 && range) {
        const char *bar = strchr(row->allowed, '|'), *low = bar ? bar + 1 : row->allowed;
        if (bar)
            fprintf(out, "%s%.*s%s, or ", quote, (int)(bar - row->allowed), row->allowed, quote);
        fprintf(out, "%s%.*s%s to %s%s%s", quote, (int)(range - low), low, quote, quote, range + 2, quote);
        if (strcmp(row->type, "SECONDS") == 0)
            fputs(" seconds", out);
        return;
    }
    fputs(quote, out);
    for (const char *c = row->allowed; *c; c++) {
        if (*c == '|')
            fprintf(out, "%s, %s", quote, quote);
        else
            fputc(*c, out);
    }
    fputs(quote, out);
}

void options_write_text(FILE *out) {
    char value[OPTION_STRING_MAX];
    for (int id = 0; id < OPTION_COUNT; id++) {
        const option_info *row = &option_table[id];
        if (row->internal)
            continue;
        option_format((option_id)id, value, sizeof value);
        fprintf(out, "%s=%s  (%s; ", row->env, value,
                option_set_by((option_id)id) == OPTION_FROM_DEFAULT ? "default" : "from the environment");
        option_write_allowed(out, row, "");
        fprintf(out, ")\n    %s\n", row->doc);
    }
    fputs("\nAll of them are environment variables; `castor run --set NAME=VALUE` sets one for a run.\n"
          "In sizes " OPTION_BYTES_NOTE ".\n",
          out);
}

void options_write_markdown(FILE *out) {
    fputs("| name | default | values | what it does |\n| --- | --- | --- | --- |\n", out);
    for (int id = 0; id < OPTION_COUNT; id++) {
        const option_info *row = &option_table[id];
        if (row->internal)
            continue;
        fprintf(out, row->def[0] ? "| `%s` | `%s` | " : "| `%s` | %s | ", row->env, row->def);
        option_write_allowed(out, row, row->allowed[0] ? "`" : "");
        fprintf(out, " | %s |\n", row->doc);
    }
}

/* ---- hooks ---- */

static const char *mode_name(hook_mode mode) {
    return mode == HOOK_MODE_REPLACE ? "replace" : "observe";
}

void hooks_write_text(FILE *out) {
    const char *layer = NULL;
    for (int id = 0; id < HOOK_COUNT; id++) {
        const hook_info *row = &hook_table[id];
        const char *row_layer = hook_layer_name[row->layer];
        if (!layer || strcmp(layer, row_layer) != 0)
            fprintf(out, "%s%s\n", layer ? "\n" : "", row_layer);
        layer = row_layer;
        fprintf(out, "  %s (%s)\n      %s\n", row->name, mode_name(row->mode), row->doc);
    }
}

void hooks_write_markdown(FILE *out) {
    fputs("| layer | function | mode | what for |\n| --- | --- | --- | --- |\n", out);
    for (int id = 0; id < HOOK_COUNT; id++) {
        const hook_info *row = &hook_table[id];
        fprintf(out, "| %s | `%s` | %s | %s |\n", hook_layer_name[row->layer], row->name,
                mode_name(row->mode), row->doc);
    }
}

/* ---- command lines ---- */

static int table_main(command_line line, int markdown_id, void (*text)(FILE *), void (*markdown)(FILE *)) {
    void (*write_table)(FILE *) = text;
    for (int id; (id = command_line_next(&line)) != COMMAND_LINE_END;) {
        if (id == COMMAND_LINE_HELP) {
            command_help_write(line.command, stdout);
            return 0;
        }
        if (id != markdown_id) {
            if (id != COMMAND_LINE_WRONG)
                LOG_E("%s: %s: unknown argument; `castor %s --help` lists all", line.argv[0],
                      line.argv[line.next - 1], line.argv[0]);
            return EXIT_USAGE;
        }
        write_table = markdown;
    }
    write_table(stdout);
    if (fflush(stdout) != 0) {
        LOG_E("standard output cannot be written");
        return 1;
    }
    return 0;
}

int options_main(int argc, char **argv) {
    char message[512];
    castor_status loaded = options_load(environ, message, sizeof message);
    int status = table_main((command_line){SUBCOMMAND_options, argc, argv, 1, NULL},
                            ARGUMENT_options_markdown, options_write_text, options_write_markdown);
    if (status == 0 && loaded != CASTOR_OK) {
        LOG_E("in the environment: %s", message);
        return EXIT_USAGE;
    }
    return status;
}

int hooks_main(int argc, char **argv) {
    return table_main((command_line){SUBCOMMAND_hooks, argc, argv, 1, NULL}, ARGUMENT_hooks_markdown,
                      hooks_write_text, hooks_write_markdown);
}
