#include "refusal.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/log.h"
#include "job/options.h"
#include "job/plugin.h"
#include "events/life.h"
#include "format.h"

/* The file `name` of the log directory, to append; -1: there is none. */
static int note_open(const char *name) {
    char path[OPTION_STRING_MAX + 16];
    if (!options()->log_dir[0])
        return -1;
    log_format(path, sizeof path, "%s/%s", options()->log_dir, name);
    return open(path, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
}

static void note_write(int file, const char *name, const char *reason) {
    char text[2048];
    if (file < 0)
        return;
    size_t size = log_message(text, sizeof text - 1, "process %d: %s", (int)getpid(), reason);
    text[size++] = '\n';
    if (write(file, text, size) < 0)
        LOG_W("%s/%s could not be written: error %d", options()->log_dir, name, errno);
    close(file);
}

void refusal_of_agent(void) {
    static const char reason[] =
        "the agent was not reached: this process ran as plain PyTorch (python -I or -E, "
        "TORCH_DEVICE_BACKEND_AUTOLOAD=0, a PYTHONPATH that was replaced, or a torch before 2.5, keep "
        "PyTorch from calling it)";
    int file = note_open(TRACE_UNREACHED_NAME);
    bool is_run = options()->job[0] && options()->begun != CASTOR_BEGUN_PROCESS;
    if (file < 0 || !is_run) /* else `castor run` says so at the end of the job */
        LOG_W("%s", reason);
    note_write(file, TRACE_UNREACHED_NAME, reason);
}

bool refusal_is_due(void) {
    return !life_has_agent() && plugin()->engine && options()->on_error == CASTOR_ON_ERROR_ABORT;
}

void refusal_write(const char *reason) {
    struct stat note;
    const char *name = log_is_shown() ? TRACE_REFUSED_NAME : TRACE_REFUSED_UNSEEN_NAME;
    int file = note_open(name);
    /* Who finds it written knows that it has been said. Under the lock, since castor ends the other ranks when the first
     * one has ended: that must not be before the one that says it has done so. */
    if (file >= 0 && flock(file, LOCK_EX) == 0 && fstat(file, &note) == 0 && note.st_size > 0) {
        close(file);
        return;
    }
    if (file < 0 || log_is_shown())
        LOG_E("%s", reason);
    note_write(file, name, reason);
}
