/* The exported functions about the process: thin, over the modules. */
#include "castor.h"

#include <stdatomic.h>
#include <string.h>
#include "arena/arena.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/version.h"
#include "job/begin.h"
#include "job/options.h"
#include "job/plugin.h"
#include "base/thread.h"
#include "job/torch_version.h"
#include "forking/forking.h"
#include "gauges.h"
#include "hooks/torch/device_names.h"
#include "start.h"
#include "trace/format.h"
#include "trace/pass.h"
#include "trace/phases.h"
#include "trace/refusal.h"
#include "trace/sampler.h"
#include "trace/trace.h"

/* What castor run writes of a run that it starts (launcher/run/about_begin.c), as far as this process knows it. */
static void tell_of_job(void) {
    char value[OPTION_STRING_MAX], line[OPTION_STRING_MAX + 64];
    trace_about_add(TRACE_ABOUT_CASTOR, CASTOR_VERSION);
    log_format(line, sizeof line, "%llu", (unsigned long long)clock_ns(CLOCK_REALTIME));
    trace_about_add(TRACE_ABOUT_STARTED, line);
    for (int id = 0; id < OPTION_COUNT; id++) {
        const option_info *row = &option_table[id];
        option_format((option_id)id, value, sizeof value);
        if (row->internal || id == OPTION_ID_log_dir || id == OPTION_ID_log_parent ||
            strcmp(value, row->def) == 0)
            continue;
        log_format(line, sizeof line, "%s=%s", row->env, value);
        trace_about_add(TRACE_ABOUT_OPTION_ENVIRONMENT, line);
    }
}

static void attach_once(void) {
    static _Atomic int attached;
    if (atomic_exchange(&attached, 1))
        return;
    phases_attach();
    if (job_began_here())
        tell_of_job();
    trace_about_add(TRACE_ABOUT_RANKS, serving_why_not());
    gauges_start();
    sample_start();
}

castor_status castor_attach(void) {
    castor_status status = start_wake();
    if (status == CASTOR_OK)
        attach_once();
    return status;
}

int castor_fork_ready(void) {
    return forking_ready();
}

int castor_fork_become(int rank, int32_t *log_file) {
    return forking_become(rank, log_file);
}

int castor_fork_finish(int helper) {
    return forking_finish(helper);
}

int castor_serve_ready(void) {
    return serving_ready();
}

void castor_serve_begin(int in_server) {
    if (in_server)
        serving_begin_server();
    else
        serving_begin_launcher();
}

void castor_ranks_tell(const char *how) {
    trace_about_add(TRACE_ABOUT_RANKS, how);
}

int castor_serve_become(int launcher, const char *name, const char *words, uint64_t bytes) {
    return serving_become(launcher, name, words, bytes);
}

castor_status castor_environment_read(void) {
    return start_again();
}

void castor_beside(void) {
    start_beside();
}

const char *castor_error(void) {
    return error_text();
}

#define VALUE_STRING(field)     .kind = CASTOR_OPTION_TEXT
#define VALUE_SIGNATURES(field) .kind = CASTOR_OPTION_TEXT
#define VALUE_ENUM(field)       .kind = CASTOR_OPTION_TEXT
#define VALUE_BOOL(field)       .kind = CASTOR_OPTION_BOOL, .integer = options()->field
#define VALUE_INT(field)        .kind = CASTOR_OPTION_INTEGER, .integer = options()->field
#define VALUE_BYTES(field)      .kind = CASTOR_OPTION_INTEGER, .integer = (int64_t)options()->field
#define VALUE_SECONDS(field)    .kind = CASTOR_OPTION_DECIMAL, .decimal = options()->field
#define VALUE_FRACTION(field)   .kind = CASTOR_OPTION_DECIMAL, .decimal = options()->field

int castor_option_get(uint32_t index, castor_option *out) {
    _Static_assert(OPTION_STRING_MAX <= THREAD_ROOM_BYTES, "a value is longer");
    char *text = thread_room(THREAD_ROOM_OPTION);
    switch (index) {
#define OPTION(type, field, env, def, allowed, doc)                                                          \
    case OPTION_ID_##field:                                                                                  \
        *out = (castor_option){.name = #field, VALUE_##type(field)};                                         \
        break;
#include "job/options.def"
    default:
        return 0;
    }
    option_format((option_id)index, text, THREAD_ROOM_BYTES);
    out->text = text;
    return 1;
}

castor_status castor_option_set(const char *name, const char *value) {
    char message[1024];
    castor_status status = option_set(name, value, message, sizeof message);
    return status == CASTOR_OK ? CASTOR_OK : error_set(status, "%s", message);
}

void castor_engine_start(void) {
    start_engine();
}

int castor_plugin_engine(void) {
    return plugin()->engine;
}

int castor_plugin_shards(void) {
    int shards = options()->plugin == CASTOR_PLUGIN_HYBRID ? (int)options()->zero_stage : plugin()->shards;
    return options()->shard == CASTOR_SHARD_WORLD ? shards : 0;
}

castor_status castor_torch_check(const char *version) {
    return torch_version_check(version);
}

void castor_versions_tell(const char *torch, const char *python) {
    trace_about_add(TRACE_ABOUT_TORCH, torch);
    trace_about_add(TRACE_ABOUT_PYTHON, python);
}

void castor_say(const char *text) {
    log_say(text);
}

int castor_said(const char *text) {
    return log_said(text);
}

void castor_log(int level, const char *text) {
    log_write(level < LOG_ERROR ? LOG_ERROR : level > LOG_DEBUG ? LOG_DEBUG : (log_level)level, "%s", text);
}

void castor_passthrough(const char *reason) {
    LOG_W("this process trains without the plugin: %s", reason);
    char outcome[TRACE_OUTCOME_MAX];
    log_message(outcome, sizeof outcome, "passthrough: %s", reason);
    trace_outcome_set(outcome);
}

void castor_exception(const char *type, const char *message, const char *place, int by_other) {
    trace_exception_set(type, message, place, by_other != 0);
}

void castor_cuda_is_cpu(void) {
    device_names_replace();
}

void castor_cuda_is_cpu_say(void) {
    device_names_say();
}

void castor_refuse(const char *reason) {
    refusal_write(reason);
}

void castor_rank_set(int rank) {
    trace_set_rank(rank);
    log_set_rank(rank);
}

uint64_t castor_arena_block(const void *address) {
    return arena_block_size(address);
}

void castor_arena_get(castor_arena_info *out) {
    arena_stats stats;
    arena_get_stats(&stats);
    *out =
        (castor_arena_info){stats.live_bytes, stats.live_peak_bytes, stats.dirty_bytes, stats.adopted_bytes};
}

uint64_t castor_now_ns(void) {
    return trace_now_ns();
}

_Static_assert((int)CASTOR_PHASE_DATA == (int)TRACE_PHASE_DATA &&
                   (int)CASTOR_PHASE_BACKWARD == (int)TRACE_PHASE_BACKWARD &&
                   (int)CASTOR_PHASE_EXIT == (int)TRACE_PHASE_EXIT,
               "one value, two names");

uint64_t castor_phase_begin(int phase) {
    if (phase == TRACE_PHASE_EXIT) /* pages that were shared since the import are written while Python ends */
        arena_retain_most(0);
    return phases_begin((trace_phase)phase);
}

void castor_phase_end(int batch) {
    phases_end(batch != 0);
}

/* The function of Python that loads a module, and a function of C around it, which leaves no frame in tracebacks. */
static void *import_stock, *(*import_call)(void *function, void *arguments, void *names);
static __thread unsigned import_depth __attribute__((tls_model("initial-exec")));

static void *import_run(void *self, void *arguments) {
    (void)self;
    if (import_depth++ == 0)
        phases_begin(TRACE_PHASE_IMPORT);
    void *module = import_call(import_stock, arguments, NULL);
    if (--import_depth == 0)
        phases_end(false);
    return module;
}

const void *castor_import_counted(void *stock, void *call) {
    /* Python's PyMethodDef. */
    static const struct {
        const char *name;
        void *(*function)(void *self, void *arguments);
        int flags;
        const char *doc;
    } method = {"_find_and_load", import_run, 1 /* METH_VARARGS */, NULL};
    import_stock = stock;
    import_call = (void *(*)(void *, void *, void *))call;
    return &method;
}

void castor_event_step(uint64_t begin_ns, uint64_t end_ns, uint32_t optimizer, uint32_t mode) {
    trace_counter_add(GAUGE_STEPS, 1);
    trace_record_write(TRACE_STEP, 0, begin_ns, end_ns, 0, optimizer, mode, 0);
    gauges_step();
}

void castor_event_backward(uint64_t begin_ns, uint64_t end_ns, int synchronized) {
    trace_counter_add(GAUGE_MICRO_STEPS, 1);
    trace_record_write(TRACE_BACKWARD, 0, begin_ns, end_ns, 0, (uint64_t)synchronized, 0, 0);
    gauges_backward();
}

void castor_event_pass(const castor_pass *pass, uint64_t begin_ns) {
    trace_pass packed = {.id = pass->kind == CASTOR_PASS_BACKWARD_WEIGHT ? TRACE_PASS_WEIGHT
                               : pass->kind != CASTOR_PASS_FORWARD       ? TRACE_PASS_BACKWARD
                               : pass->forward_only                      ? TRACE_PASS_FORWARD_ONLY
                                                                         : TRACE_PASS_FORWARD,
                         .microbatch = (uint32_t)pass->microbatch,
                         .microbatches = (uint32_t)pass->microbatches,
                         .virtual_stage = (uint32_t)pass->virtual_stage,
                         .virtual_stages = (uint32_t)pass->virtual_stages,
                         .batch = (uint32_t)pass->batch,
                         .stages = (uint32_t)pass->stages,
                         .on_device = pass->on_device != 0,
                         .split = pass->split != 0};
    uint64_t a, b, c;
    trace_pass_pack(&packed, &a, &b, &c);
    trace_record_write(TRACE_PASS, packed.id, begin_ns, trace_now_ns(), 0, a, b, c);
}

void castor_event_model_data(uint64_t param_bytes, uint64_t grad_bytes, uint64_t optim_bytes) {
    gauges_model_data_set(param_bytes, grad_bytes, optim_bytes);
    gauges_sample();
}
