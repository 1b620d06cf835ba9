#include "run.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/log.h"
#include "job/words.h"
#include "launcher/common/suffix.h"

/* ---- finding the file ---- */

static bool is_executable(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISREG(info.st_mode) && access(path, X_OK) == 0;
}

static int refuse_file(const char *name, const char *path) {
    struct stat info;
    if (stat(path, &info) != 0 && errno != EACCES) {
        LOG_E("%s: no such command%s", name,
              has_suffix(name, ".py") ? " and no such file; a script is run as: castor run -- python SCRIPT"
                                      : "");
        return RUN_EXIT_NOT_FOUND;
    }
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode))
        LOG_E("%s: is a directory, not a command", name);
    else if (has_suffix(name, ".py"))
        LOG_E("%s: not executable; run it as: castor run -- python %s", name, name);
    else
        LOG_E("%s: not executable", name);
    return RUN_EXIT_NOT_EXECUTABLE;
}

/* False: not there, or, where `path` says which, not to be executed. */
static bool find_in(const char *name, const char *search, char *path, size_t path_size) {
    char other[PATH_MAX] = "";
    for (const char *element = search; element;) {
        const char *colon = strchr(element, ':');
        int length = colon ? (int)(colon - element) : (int)strlen(element);
        /* An empty element of PATH is the working directory. */
        int size = snprintf(path, path_size, "%.*s/%s", length ? length : 1, length ? element : ".", name);
        if (size > 0 && (size_t)size < path_size) {
            if (is_executable(path))
                return true;
            if (!other[0] && access(path, F_OK) == 0 && size < PATH_MAX)
                strcpy(other, path);
        }
        element = colon ? colon + 1 : NULL;
    }
    snprintf(path, path_size, "%s", other);
    return false;
}

/* `name` is nowhere in `search`. */
static void refuse_missing(const char *name, const char *search) {
    char other[PATH_MAX], path[PATH_MAX];
    const char *known = strcmp(name, "python") == 0 ? "python3" : "python";
    if (!words_is_python(name))
        LOG_E("%s: command not found in PATH", name);
    else if (run_python_other(search, "", other, sizeof other))
        LOG_E("%s: command not found in PATH; %s has torch: castor run -- %s ...", name, other, other);
    else if (find_in(known, search, path, sizeof path))
        LOG_E("%s: command not found in PATH; %s is there: castor run -- %s ...", name, known, known);
    else
        LOG_E("%s: command not found in PATH", name);
}

int run_command_find(const char *name, const char *search, char *path, size_t path_size) {
    if (strchr(name, '/')) {
        if (strlen(name) >= path_size) {
            LOG_E("%.100s...: the name is too long", name);
            return RUN_EXIT_NOT_FOUND;
        }
        strcpy(path, name);
        return is_executable(path) ? 0 : refuse_file(name, path);
    }
    if (!search || !search[0])
        search = "/usr/local/bin:/usr/bin:/bin";
    if (find_in(name, search, path, path_size))
        return 0;
    if (path[0])
        return refuse_file(name, path);
    if (access(name, F_OK) == 0 && has_suffix(name, ".py")) {
        LOG_E("%s: a script, not a command; run it as: castor run -- python %s", name, name);
        return RUN_EXIT_NOT_FOUND;
    }
    refuse_missing(name, search);
    return RUN_EXIT_NOT_FOUND;
}

/* ---- recognizing other launchers ---- */

/* Commands that start the command among their arguments. */
static const struct wrapper {
    const char *name;
    bool becomes; /* the command, instead of starting it as a process of its own */
} wrappers[] = {
    {"env", true},      {"nohup", true},  {"nice", true},    {"ionice", true},  {"time", false},
    {"timeout", false}, {"stdbuf", true}, {"taskset", true}, {"chrt", true},    {"setsid", false},
    {"numactl", true},  {"uv", false},    {"poetry", false}, {"pipenv", false}, {"conda", false},
    {"mamba", false},   {"pixi", false},
};

/* NULL: it is none. */
static const struct wrapper *wrapper_of(const char *word) {
    for (size_t i = 0; i < sizeof wrappers / sizeof *wrappers; i++)
        if (strcmp(words_base_name(word), wrappers[i].name) == 0)
            return &wrappers[i];
    return NULL;
}

/* Reads a command, and one that starts its arguments, up to a launcher or Python. */
static python_line command_read(char *const *command) {
    bool wrapped = command[0] && wrapper_of(command[0]);
    python_line line = {0};
    for (; *command; command++) {
        line.launcher = words_find_launcher(*command, &line.fix);
        if (line.launcher)
            break;
        if (words_is_python(*command))
            return words_python_line(command + 1);
        if (!wrapped)
            break;
    }
    return line;
}

static bool becomes_python(char *const *words) {
    const struct wrapper *wrapper = words[0] ? wrapper_of(words[0]) : NULL;
    bool wrapped = wrapper && wrapper->becomes;
    for (; *words; words++) {
        if (words_is_python(*words))
            return true;
        if (!wrapped)
            return false;
    }
    return false;
}

const char *run_command_launcher(char *const *command, const char **fix) {
    python_line line = command_read(command);
    *fix = line.fix;
    return line.launcher;
}

bool run_command_serves(char *const *command) {
    static const char *const names[] = {"torchrun",
                                        "accelerate",
                                        "torch.distributed.run",
                                        "torch.distributed.launch",
                                        "accelerate.commands.launch",
                                        "accelerate.commands.accelerate_cli"};
    const char *fix, *launcher = run_command_launcher(command, &fix);
    for (size_t i = 0; launcher && i < sizeof names / sizeof *names; i++)
        if (strcmp(launcher, names[i]) == 0)
            return true;
    return false;
}

bool run_command_is_input(char *const *command) {
    return command_read(command).from_input;
}

/* ---- what keeps the agent away, as far as it can be seen ---- */

#define AUTOLOAD                                                                                             \
    "TORCH_DEVICE_BACKEND_AUTOLOAD" /* PyTorch loads what others have added if it is 1 or unset */

enum { FIRST_LINE_MAX = 256, FIRST_LINE_WORDS = 16 };

typedef struct obstacle {
    const char *autoload; /* as the command will find it; NULL: unset */
    char text[512];       /* what to leave out; "": nothing */
} obstacle;

static bool is_name(const char *word, size_t length, const char *name) {
    return strlen(name) == length && memcmp(word, name, length) == 0;
}

/* Reads the words of `env` up to the command that it starts, which is returned. */
static char *const *env_read(char *const *word, obstacle *out) {
    for (; *word; word++) {
        const char *text = *word, *unset = NULL, *equals = strchr(text, '=');
        if (strcmp(text, "-i") == 0 || strcmp(text, "-") == 0 || strcmp(text, "--ignore-environment") == 0)
            log_format(out->text, sizeof out->text, "%s of env", text);
        else if ((strcmp(text, "-u") == 0 || strcmp(text, "--unset") == 0) && word[1])
            unset = *++word;
        else if (strncmp(text, "-u", 2) == 0)
            unset = text + 2;
        else if (strncmp(text, "--unset=", 8) == 0)
            unset = text + 8;
        else if ((strcmp(text, "-C") == 0 || strcmp(text, "--chdir") == 0) && word[1])
            word++;
        else if (text[0] != '-' && !equals)
            break;
        const char *name = unset ? unset : text;
        size_t length = unset ? strlen(unset) : equals ? (size_t)(equals - text) : 0;
        if (is_name(name, length, AUTOLOAD))
            out->autoload = unset ? NULL : equals + 1;
        else if (is_name(name, length, "PYTHONPATH") || is_name(name, length, "LD_PRELOAD"))
            log_format(out->text, sizeof out->text,
                       unset ? "-u %.200s of env" : "%.200s of env (set it in front of castor run)", name);
    }
    return word;
}

static void find_obstacle(char *const *command, obstacle *out) {
    const known_launcher *first = *command ? words_launcher_of(*command) : NULL;
    bool wrapped = *command && (wrapper_of(*command) || (first && first->command));
    while (*command && !out->text[0]) {
        if (words_is_python(*command)) {
            python_line line = words_python_line(command + 1);
            /* The ranks of a launcher are started without this option. */
            if (!line.launcher && line.alone)
                log_format(out->text, sizeof out->text, "-%c of %.200s", line.alone,
                           words_base_name(*command));
            return;
        }
        const known_launcher *launcher = words_launcher_of(*command);
        if ((launcher && !launcher->command) || !wrapped)
            return;
        command = strcmp(words_base_name(*command), "env") == 0 ? env_read(command + 1, out) : command + 1;
    }
}

/* The words of the file's first line, if that names the program to run it with. */
static bool read_first_line(const char *path, char *line, char **words) {
    size_t count = 0;
    FILE *file = fopen(path, "re");
    bool read = file && fgets(line, FIRST_LINE_MAX, file) && strncmp(line, "#!", 2) == 0;
    if (file)
        fclose(file);
    for (char *word = read ? strtok(line + 2, " \t\r\n") : NULL; word; word = strtok(NULL, " \t\r\n"))
        if (count + 1 < FIRST_LINE_WORDS)
            words[count++] = word;
    words[count] = NULL;
    return count > 0;
}

bool run_command_is_apart(char *const *command, const char *path, const char *autoload, char *what,
                          size_t what_size) {
    char line[FIRST_LINE_MAX], *words[FIRST_LINE_WORDS];
    obstacle found = {.autoload = autoload};
    find_obstacle(command, &found);
    if (!found.text[0] && !words_launcher_of(command[0]) && read_first_line(path, line, words)) {
        find_obstacle(words, &found);
        if (found.text[0])
            log_format(what, what_size, "%s in the first line of %s", found.text, command[0]);
    } else if (found.text[0]) {
        log_format(what, what_size, "%s", found.text);
    }
    if (!found.text[0] && found.autoload && strcmp(found.autoload, "1") != 0) {
        log_format(found.text, sizeof found.text, AUTOLOAD "=%.100s", found.autoload);
        log_format(what, what_size, "%s in the environment", found.text);
    }
    return found.text[0] != '\0';
}

bool run_command_becomes_python(char *const *command, const char *path) {
    char line[FIRST_LINE_MAX], *words[FIRST_LINE_WORDS];
    return becomes_python(command) || (read_first_line(path, line, words) && becomes_python(words));
}
