#include "run.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "base/log.h"
#include "job/options.h"
#include "job/plugin.h"
#include "job/torch_version.h"
#include "job/words.h"
#include "launcher/common/trace_read.h"
#include "trace/format.h"

void run_path_quote(const char *path, char *out, size_t out_size) {
    static const char safe[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:=@%+,";
    if (path[0] && strspn(path, safe) == strlen(path)) {
        log_format(out, out_size, "%s", path);
        return;
    }
    size_t used = log_format(out, out_size, "'");
    for (; *path; path++)
        used += *path == '\'' ? log_format(out + used, out_size - used, "'\\''")
                              : log_format(out + used, out_size - used, "%c", *path);
    log_format(out + used, out_size - used, "'");
}

/* The first line of the note; false: there is none. */
static bool note_read(const char *directory, const char *name, char *out, size_t out_size) {
    char path[PATH_MAX + 32];
    log_format(path, sizeof path, "%s/%s", directory, name);
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    if (!fgets(out, (int)out_size, file))
        log_format(out, out_size, "no reason could be written");
    fclose(file);
    out[strcspn(out, "\n")] = '\0';
    trace_read_clean(out, out_size);
    return true;
}

static bool has_trace(const char *directory) {
    DIR *entries = opendir(directory);
    if (!entries)
        return false;
    bool found = false;
    for (struct dirent *entry; !found && (entry = readdir(entries));) {
        const char *dot = strrchr(entry->d_name, '.');
        found = dot && strcmp(dot, TRACE_COUNTERS_SUFFIX) == 0;
    }
    closedir(entries);
    return found;
}

bool run_outcome_refused(const run_job *job) {
    char text[64];
    return note_read(job->directory.path, TRACE_REFUSED_NAME, text, sizeof text) ||
           note_read(job->directory.path, TRACE_REFUSED_UNSEEN_NAME, text, sizeof text);
}

/* The command failed before PyTorch was used, and has said why. A Python without torch is a reason that says too little. */
static void say_where_torch_is(const run_job *job, const run_environment *settled) {
    char other[PATH_MAX];
    const char *name = job->request->command[0];
    if (!words_is_python(name) ||
        run_python_torch(job->command, run_environment_get(settled, "HOME")) != RUN_TORCH_MISSING)
        return;
    if (run_python_other(run_environment_get(settled, "PATH"), job->command, other, sizeof other))
        LOG_I("%s has no torch, and %s has it: castor run -- %s ...", name, other, other);
    else if (plugin()->engine)
        LOG_I("%s has no torch; Castor needs torch " TORCH_MIN_TEXT " or later: pip install torch", name);
}

static void say_untraced(const run_job *job, const run_environment *settled, int status) {
    if (!run_directory_takes(&job->directory, sizeof(trace_counters)))
        return; /* the library has said why the trace could not be written */
    if (status)
        say_where_torch_is(job, settled);
    else
        LOG_I("nothing was recorded: no process of the command used PyTorch under Castor");
}

void run_outcome_report(const run_job *job, const run_environment *settled, int status) {
    char text[2048], quoted[PATH_MAX + 64], plugin[64];
    if (note_read(job->directory.path, TRACE_REFUSED_NAME, text, sizeof text))
        return; /* the library has said all */
    if (note_read(job->directory.path, TRACE_REFUSED_UNSEEN_NAME, text, sizeof text)) {
        const char *reason = strstr(text, ": ");
        LOG_E("%s", reason ? reason + 2 : text);
        return;
    }
    bool traced = has_trace(job->directory.path);
    option_format(OPTION_ID_plugin, plugin, sizeof plugin);
    if (note_read(job->directory.path, TRACE_UNREACHED_NAME, text, sizeof text))
        LOG_W("this run counts as passthrough%s%s: %s",
              options()->plugin == CASTOR_PLUGIN_NONE ? "" : "; it was not under plugin ",
              options()->plugin == CASTOR_PLUGIN_NONE ? "" : plugin, text);
    else if (!traced)
        say_untraced(job, settled, status);
    if (job->summarize && traced)
        job->summarize(job, status);
    run_path_quote(job->directory.shown, quoted, sizeof quoted);
    LOG_I("report: castor report %s", quoted);
}
