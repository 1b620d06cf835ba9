#include "command_line.h"

#include <ctype.h>
#include <stdbool.h>
#include <string.h>
#include "base/log.h"
#include "base/nearest.h"
#include "job/options.h"

const subcommand_info subcommand_table[SUBCOMMAND_COUNT] = {
#define COMMAND(id, usage, doc, text) {#id, usage, doc, text},
#define INTERNAL_COMMAND(id, usage)   {#id, usage, NULL, NULL},
#include "commands.def"
};

const argument_info argument_table[ARGUMENT_COUNT] = {
#define ARGUMENT(command, id, name, also, value, allowed, doc)                                               \
    {SUBCOMMAND_##command, name, also, value, allowed, doc},
#include "commands.def"
};

int choices_split(const char *choices, char out[CHOICES_MAX][CHOICE_SIZE]) {
    int count = 0;
    while (*choices && count < CHOICES_MAX) {
        size_t length = strcspn(choices, "|");
        snprintf(out[count++], CHOICE_SIZE, "%.*s", (int)length, choices);
        choices += length + (choices[length] == '|');
    }
    return count;
}

int command_line_find(subcommand_id command, const char *word, const char **value) {
    const char *equals = word[0] == '-' && word[1] == '-' ? strchr(word, '=') : NULL;
    size_t length = equals ? (size_t)(equals - word) : strlen(word);
    *value = equals ? equals + 1 : NULL;
    for (int id = 0; id < ARGUMENT_COUNT; id++) {
        const argument_info *row = &argument_table[id];
        if (row->command == command && length > 0 &&
            ((strlen(row->name) == length && memcmp(row->name, word, length) == 0) ||
             (strlen(row->also) == length && memcmp(row->also, word, length) == 0)))
            return id;
    }
    return -1;
}

static int refuse_option(const command_line *line, const char *word) {
    const char *names[ARGUMENT_COUNT], *command = subcommand_table[line->command].name;
    size_t count = 0;
    for (int id = 0; id < ARGUMENT_COUNT; id++)
        if (argument_table[id].command == line->command)
            names[count++] = argument_table[id].name;
    const char *near = nearest_name(word, names, count);
    const char *dash = line->command == SUBCOMMAND_run || line->command == SUBCOMMAND_rehearse
                           ? "; put -- before a command that starts with a dash"
                           : "";
    if (near)
        LOG_E("%s: %s: unknown option; did you mean %s? (`castor %s --help` lists all%s)", command, word,
              near, command, dash);
    else
        LOG_E("%s: %s: unknown option; `castor %s --help` lists all%s", command, word, command, dash);
    return COMMAND_LINE_WRONG;
}

/* What an option of few values was given. */
static int check_choice(const command_line *line, const argument_info *row) {
    char choices[CHOICES_MAX][CHOICE_SIZE], list[CHOICES_MAX * (CHOICE_SIZE + 2)] = "";
    const char *names[CHOICES_MAX], *command = subcommand_table[line->command].name;
    int count = choices_split(row->allowed, choices);
    for (int i = 0; i < count; i++) {
        if (strcmp(choices[i], line->value) == 0)
            return 0;
        names[i] = choices[i];
        strcat(strcat(list, i > 0 ? ", " : ""), choices[i]);
    }
    if (count == 0)
        return 0;
    const char *near = nearest_name(line->value, names, (size_t)count);
    if (near)
        LOG_E("%s: %s %s: unknown value; did you mean %s? (allowed: %s)", command, row->name, line->value,
              near, list);
    else
        LOG_E("%s: %s %s: unknown value; allowed: %s", command, row->name, line->value, list);
    return COMMAND_LINE_WRONG;
}

int command_line_next(command_line *line) {
    if (line->next >= line->argc)
        return COMMAND_LINE_END;
    const char *word = line->argv[line->next++], *command = subcommand_table[line->command].name;
    line->value = word;
    if (word[0] != '-')
        return COMMAND_LINE_WORD;
    if (strcmp(word, "--") == 0 && strstr(subcommand_table[line->command].usage, "--"))
        return COMMAND_LINE_REST;
    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0)
        return COMMAND_LINE_HELP;
    int id = command_line_find(line->command, word, &line->value);
    if (id < 0)
        return refuse_option(line, word);
    const argument_info *row = &argument_table[id];
    if (!row->value[0] && line->value) {
        LOG_E("%s: %s: takes no value", command, word);
        return COMMAND_LINE_WRONG;
    }
    if (row->value[0] && !line->value) {
        if (line->next >= line->argc || strcmp(line->argv[line->next], "--") == 0) {
            LOG_E("%s: %s: a value is missing: %s %s", command, word, word, row->value);
            return COMMAND_LINE_WRONG;
        }
        line->value = line->argv[line->next++];
    }
    return check_choice(line, row) ? COMMAND_LINE_WRONG : id;
}

/* ---- help ---- */

void command_usage_write(subcommand_id command, FILE *out) {
    bool options = false;
    for (int id = 0; id < ARGUMENT_COUNT; id++)
        options |= argument_table[id].command == command;
    const subcommand_info *row = &subcommand_table[command];
    fprintf(out, "castor %s%s%s%s", row->name, options ? " [OPTION]..." : "", row->usage[0] ? " " : "",
            row->usage);
}

/* Lines of at most so many columns, broken between words. */
static void write_wrapped(const char *text, FILE *out) {
    enum { COLUMNS = 100 };
    size_t column = 0;
    while (*text) {
        size_t length = strcspn(text, " ");
        if (column > 0 && column + 1 + length > COLUMNS) {
            fputc('\n', out);
            column = 0;
        }
        column += (size_t)fprintf(out, "%s%.*s", column > 0 ? " " : "", (int)length, text);
        text += length + (text[length] == ' ');
    }
    fputc('\n', out);
}

void command_help_write(subcommand_id command, FILE *out) {
    const subcommand_info *row = &subcommand_table[command];
    fputs("usage: ", out);
    command_usage_write(command, out);
    fprintf(out, "\n\n%c%s.\n", toupper(row->doc[0]), row->doc + 1);
    if (row->text[0])
        write_wrapped(row->text, out);
    fputc('\n', out);
    for (int id = 0; id < ARGUMENT_COUNT; id++) {
        const argument_info *argument = &argument_table[id];
        if (argument->command != command)
            continue;
        char left[64];
        snprintf(left, sizeof left, "%s%s%s %s", argument->name, argument->also[0] ? ", " : "",
                 argument->also, argument->value);
        fprintf(out, "  %-20s %s", left, argument->doc);
        fprintf(out, argument->allowed[0] ? ": %s\n" : "\n", argument->allowed);
    }
    fputs("  --help               this text\n", out);
    if (command == SUBCOMMAND_run)
        fputs("\n" COMMAND_EXAMPLES, out);
}
