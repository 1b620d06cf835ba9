#include "outputs.h"

#include <fcntl.h>
#include <stddef.h>
#include <unistd.h>
#include "base/log.h"
#include "files/calls.h"
#include "job/fork_line.h"
#include "job/options.h"

static bool take_place(int file, int number) {
    if (file == number)
        return fcntl(file, F_SETFD, 0) == 0;
    bool done = file >= 0 && dup2(file, number) >= 0;
    if (file >= 0)
        close(file);
    return done;
}

bool outputs_take_input(void) {
    return take_place(call_open("/dev/null", O_RDONLY, 0), STDIN_FILENO);
}

bool outputs_take(int rank, const char *directory, int *log_file) {
    static const char *const names[] = {LINE_OUTPUT_NAME, LINE_ERRORS_NAME};
    char path[OPTION_STRING_MAX + 32], name[24];
    *log_file = fcntl(STDERR_FILENO, F_DUPFD, LINE_FILE_MIN);
    for (int i = 0; i < 2; i++) {
        log_format(name, sizeof name, names[i], rank);
        log_format(path, sizeof path, "%s/%s", directory, name);
        int file = call_open(path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666);
        if (!take_place(file, STDOUT_FILENO + i))
            return false;
    }
    return true;
}
