#include "cuda_streams.h"

#include <inttypes.h>
#include <string.h>
#include "hooks/table/hooks.h"

/* Handles that the runtime and the driver give a meaning: 0 and 1 are the legacy default stream, 2 a thread's own. */
#define STREAM_LEGACY     1
#define STREAM_PER_THREAD 2

enum { HOOK_UNKNOWN, HOOK_ON_STREAM, HOOK_ON_HOST };

/* Calls about a stream whose work, or whose waiting, is the host's. */
static bool is_of_host(const char *name) {
    static const char *const parts[] = {"StreamCreate", "StreamDestroy", "StreamSynchronize",
                                        "StreamBeginCapture", "StreamEndCapture"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (strstr(name, parts[i]) != NULL)
            return true;
    return false;
}

/* By name: ids are those of the library that wrote the trace. A collective's hook names its CALL too. */
static uint8_t find_hook(const report_process *process, uint32_t id) {
    const char *name = trace_read_name(process->counters, TRACE_CALL, id);
    for (int i = 0; name != NULL && i < HOOK_COUNT; i++)
        if (hook_table[i].has_stream && strcmp(hook_table[i].name, name) == 0)
            return is_of_host(name) ? HOOK_ON_HOST : HOOK_ON_STREAM;
    return HOOK_ON_HOST;
}

bool report_stream_of(report_stream_hooks *hooks, const report_process *process, const trace_record *record,
                      report_stream *out) {
    if ((record->kind != TRACE_CALL && record->kind != TRACE_COLLECTIVE) || record->id >= sizeof hooks->known)
        return false;
    if (hooks->process != process) {
        memset(hooks->known, HOOK_UNKNOWN, sizeof hooks->known);
        hooks->process = process;
    }
    uint8_t *known = &hooks->known[record->id];
    if (*known == HOOK_UNKNOWN)
        *known = find_hook(process, record->id);
    /* Of a call that failed, nothing but the result is recorded. */
    bool failed = record->kind == TRACE_CALL && record->c >> 32 != 0;
    if (*known != HOOK_ON_STREAM || failed)
        return false;
    *out = (report_stream){record->kind == TRACE_CALL ? record->a : record->c, UINT32_MAX};
    if (out->handle <= STREAM_PER_THREAD) {
        out->handle = out->handle == STREAM_PER_THREAD ? STREAM_PER_THREAD : STREAM_LEGACY;
        out->device = record->kind == TRACE_CALL ? (uint32_t)record->c : (uint32_t)(record->a >> 32);
    }
    return true;
}

void report_stream_name(const report_stream *stream, char *out, size_t out_size) {
    if (stream->handle == STREAM_LEGACY)
        snprintf(out, out_size, "default stream of device %" PRIu32, stream->device);
    else if (stream->handle == STREAM_PER_THREAD)
        snprintf(out, out_size, "a thread's default stream of device %" PRIu32, stream->device);
    else
        snprintf(out, out_size, "stream %#" PRIx64, stream->handle);
}
