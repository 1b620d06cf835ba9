/* Standard error of the ranks other than 0: a file of the log directory, of which the end is shown when the rank fails. */
#include "ranks.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "base/log.h"
#include "job/fork_line.h"

enum { TAIL_BYTES = 8192, TAIL_LINES = 20 };

void ranks_errors_path(const run_job *job, int rank, char *out, size_t out_size) {
    log_format(out, out_size, "%s/" LINE_ERRORS_NAME, job->directory.path, rank);
}

/* What is left of a line that a progress bar has written over. */
static char *visible(char *line) {
    size_t length = strlen(line);
    while (length && line[length - 1] == '\r')
        line[--length] = '\0';
    char *last = strrchr(line, '\r');
    return last ? last + 1 : line;
}

static void show(char *text, int rank) {
    char *lines[TAIL_LINES], shown[TAIL_BYTES + TAIL_LINES * 32];
    size_t count = 0, used = 0;
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
        if (*visible(line))
            lines[count++ % TAIL_LINES] = visible(line);
    for (size_t i = count > TAIL_LINES ? count - TAIL_LINES : 0; i < count; i++)
        used += log_format(shown + used, sizeof shown - used, "[rank%d]: %s\n", rank, lines[i % TAIL_LINES]);
    if (used && write(STDERR_FILENO, shown, used) < 0)
        return;
}

void ranks_errors_show(const run_job *job, int rank) {
    char path[PATH_MAX + 32], text[TAIL_BYTES + 1];
    ranks_errors_path(job, rank, path, sizeof path);
    FILE *file = fopen(path, "re");
    if (!file)
        return;
    long begin = fseek(file, -TAIL_BYTES, SEEK_END) == 0 ? ftell(file) : 0;
    if (begin == 0)
        rewind(file);
    size_t length = fread(text, 1, TAIL_BYTES, file);
    fclose(file);
    text[length] = '\0';
    char *from = memrchr(text, '\0', length); /* up to here the rank has shown it itself (log_say) */
    from = from ? from + 1 : text;
    if (from == text && begin > 0 && strchr(text, '\n'))
        from = strchr(text, '\n') + 1; /* the first line is cut */
    show(from, rank);
}
