#include "complete.h"

#include <stdbool.h>
#include <string.h>
#include "base/log.h"
#include "job/options.h"
#include "launcher/common/command_line.h"

#define BLANKS " \t\n"

enum { WORDS_MAX = 128 };

/* One candidate: `before`, already typed or implied, and `word`. */
static void offer(FILE *out, const char *typed, const char *before, const char *word, const char *after,
                  const char *doc) {
    char candidate[256];
    snprintf(candidate, sizeof candidate, "%s%s%s", before, word, after);
    if (strncmp(candidate, typed, strlen(typed)) == 0)
        fprintf(out, "%s\t%s\n", candidate, doc);
}

static void offer_choices(FILE *out, const char *typed, const char *before, const char *choices) {
    char names[CHOICES_MAX][CHOICE_SIZE];
    int count = choices_split(choices, names);
    for (int i = 0; i < count; i++)
        if (!strstr(names[i], "..")) /* a range */
            offer(out, typed, before, names[i], "", "");
}

/* NAME=VALUE of an option */
static void offer_settings(FILE *out, const char *typed, const char *before) {
    for (int id = 0; id < OPTION_COUNT; id++) {
        const option_info *row = &option_table[id];
        char name[160];
        if (row->internal)
            continue;
        snprintf(name, sizeof name, "%s%s=", before, row->env);
        if (strncmp(typed, name, strlen(name)) == 0)
            offer_choices(out, typed, name, row->allowed);
        else
            offer(out, typed, before, row->env, "=", row->doc);
    }
}

static void offer_value(FILE *out, const char *typed, const char *before, argument_id id) {
    if (id == ARGUMENT_run_set || id == ARGUMENT_rehearse_set)
        offer_settings(out, typed, before);
    else
        offer_choices(out, typed, before, argument_table[id].allowed);
}

static void offer_commands(FILE *out, const char *typed) {
    for (int id = 0; id < SUBCOMMAND_COUNT; id++)
        if (subcommand_table[id].doc)
            offer(out, typed, "", subcommand_table[id].name, "", subcommand_table[id].doc);
}

static void offer_arguments(FILE *out, const char *typed, subcommand_id command) {
    for (int id = 0; id < ARGUMENT_COUNT; id++)
        if (argument_table[id].command == command)
            offer(out, typed, "", argument_table[id].name, "", argument_table[id].doc);
    offer(out, typed, "", "--help", "", "what this command does");
}

static void complete(char *const words[], size_t count, FILE *out) {
    const char *typed = words[count - 1], *value;
    int command = 0;
    if (count == 2) {
        offer_commands(out, typed);
        return;
    }
    while (command < SUBCOMMAND_COUNT && strcmp(subcommand_table[command].name, words[1]) != 0)
        command++;
    if (command == SUBCOMMAND_COUNT)
        return;
    if (command == SUBCOMMAND_help) {
        offer_commands(out, typed);
        return;
    }
    int wanted = -1; /* the option whose value comes next */
    for (size_t i = 2; i + 1 < count; i++) {
        if (wanted >= 0) {
            wanted = -1;
            continue;
        }
        if (strcmp(words[i], "--") == 0 ||
            (words[i][0] != '-' && (command == SUBCOMMAND_run || command == SUBCOMMAND_rehearse)))
            return; /* a command of its own */
        wanted = command_line_find((subcommand_id)command, words[i], &value);
        if (wanted >= 0 && (value || !argument_table[wanted].value[0]))
            wanted = -1;
    }
    if (wanted >= 0) {
        offer_value(out, typed, "", (argument_id)wanted);
        return;
    }
    int id = command_line_find((subcommand_id)command, typed, &value);
    if (id >= 0 && value) {
        char before[64];
        snprintf(before, sizeof before, "%.*s", (int)(value - typed), typed);
        offer_value(out, typed, before, (argument_id)id);
        return;
    }
    if (typed[0] == '-' || subcommand_table[command].usage[0] == '\0')
        offer_arguments(out, typed, (subcommand_id)command);
}

void complete_write(const char *line, FILE *out) {
    char text[4096], *words[WORDS_MAX];
    size_t count = 0, length = strlen(line);
    if (length == 0 || length >= sizeof text)
        return;
    memcpy(text, line, length + 1);
    for (char *rest = text, *word; count + 1 < WORDS_MAX && (word = strtok_r(rest, BLANKS, &rest)) != NULL;)
        words[count++] = word;
    if (strchr(BLANKS, line[length - 1]))
        words[count++] = text + length; /* a word of which nothing is typed */
    if (count >= 2)
        complete(words, count, out);
}

int complete_main(int argc, char **argv) {
    if (argc != 2) {
        LOG_E("complete: takes the command line as one argument");
        return 2;
    }
    complete_write(argv[1], stdout);
    return 0;
}
