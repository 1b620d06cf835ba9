/* The command lines of castor, read by one table (commands.def).
 *
 *   word     an argument that is no option: a directory, or the beginning of the command that `castor run` starts
 *   rest     the arguments after `--`
 *
 * An option's value follows it, or an equals sign: `--format json`, `--format=json`. */
#ifndef CASTOR_LAUNCHER_COMMON_COMMAND_LINE_H
#define CASTOR_LAUNCHER_COMMON_COMMAND_LINE_H

#include <stdio.h>

typedef enum subcommand_id {
#define COMMAND(id, usage, doc, text) SUBCOMMAND_##id,
#define INTERNAL_COMMAND(id, usage)   SUBCOMMAND_##id,
#include "commands.def"
    SUBCOMMAND_COUNT
} subcommand_id;

typedef enum argument_id {
#define ARGUMENT(command, id, name, also, value, allowed, doc) ARGUMENT_##command##_##id,
#include "commands.def"
    ARGUMENT_COUNT
} argument_id;

typedef struct subcommand_info {
    const char *name, *usage, *doc, *text; /* doc and text are NULL for commands that programs call */
} subcommand_info;

typedef struct argument_info {
    subcommand_id command;
    const char *name, *also, *value, *allowed, *doc;
} argument_info;

extern const subcommand_info subcommand_table[SUBCOMMAND_COUNT];
extern const argument_info argument_table[ARGUMENT_COUNT];

#define COMMAND_EXAMPLES                                                                                     \
    "  castor run --plugin gemini -- torchrun --nproc-per-node 2 train_ddp.py\n"                             \
    "  castor run --plugin gemini --nproc 2 -- python train.py\n"

typedef struct command_line {
    subcommand_id command;
    int argc;
    char *const *argv; /* argv[0] is the command */
    int next;          /* position in argv; set it to 1 */
    const char *value; /* of the option that was read; the word */
} command_line;

enum {
    COMMAND_LINE_END = -1,
    COMMAND_LINE_WORD = -2,
    COMMAND_LINE_REST = -3, /* from argv[next] on; of commands whose usage says so */
    COMMAND_LINE_HELP = -4,
    COMMAND_LINE_WRONG = -5 /* one line on standard error names the error */
};

/* Reads the next argument: an argument_id of this command, or one of the above. */
int command_line_next(command_line *line);

/* The option that `word` names, as NAME or NAME=VALUE; -1: none. `*value` is the text after the equals sign, or NULL. */
int command_line_find(subcommand_id command, const char *word, const char **value);

enum { CHOICES_MAX = 16, CHOICE_SIZE = 32 };
/* The choices of "a|b|c", one by one; returns how many. */
int choices_split(const char *choices, char out[CHOICES_MAX][CHOICE_SIZE]);

/* `castor COMMAND --help` */
void command_help_write(subcommand_id command, FILE *out);
/* "castor report [OPTION]... DIR" */
void command_usage_write(subcommand_id command, FILE *out);

#endif
