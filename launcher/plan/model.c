#include "plan.h"

#include <stdlib.h>
#include <string.h>
#include "base/log.h"
#include "launcher/report/report.h"
#include "placement/chunk_search.h"

enum { ELEMENT = 4, CONTEXT = 1024, WARM_STEPS = 1 };

/* ---- by arithmetic: a GPT with learned positions, biases, and a head tied to the embedding ---- */

enum { LAYER_TENSORS = 12, END_TENSORS = 4 };

static bool list_tensors(plan_model *m) {
    uint64_t h = m->hidden;
    const uint64_t layer[LAYER_TENSORS] = {h, h, 3 * h * h, 3 * h, h * h,     h,
                                           h, h, 4 * h * h, 4 * h, 4 * h * h, h};
    const uint64_t ends[END_TENSORS] = {m->vocabulary * h, m->context * h, h, h};
    m->tensor_count = m->layers * LAYER_TENSORS + END_TENSORS;
    m->tensors = malloc(m->tensor_count * sizeof *m->tensors);
    if (m->tensors == NULL)
        return false;
    uint64_t *out = m->tensors;
    *out++ = ends[0];
    *out++ = ends[1];
    for (uint64_t i = 0; i < m->layers; i++, out += LAYER_TENSORS)
        memcpy(out, layer, sizeof layer);
    *out++ = ends[2];
    *out++ = ends[3];
    for (uint64_t i = 0; i < m->tensor_count; i++) {
        m->numel += m->tensors[i];
        m->largest = m->tensors[i] > m->largest ? m->tensors[i] : m->largest;
    }
    return true;
}

static bool read_figure(const char **text, uint64_t most, uint64_t *out) {
    char *end;
    if (**text < '0' || **text > '9')
        return false;
    unsigned long long value = strtoull(*text, &end, 10);
    *text = end;
    *out = value;
    return value >= 1 && value <= most;
}

bool plan_model_parse(const char *text, plan_model *out, char *message, size_t size) {
    *out = (plan_model){.context = CONTEXT};
    const struct {
        const char *name;
        uint64_t most, *value;
    } figures[] = {{"layers", PLAN_LAYERS_MAX, &out->layers},
                   {"hidden size", 1 << 20, &out->hidden},
                   {"heads", 1 << 20, &out->heads},
                   {"vocabulary", 1 << 30, &out->vocabulary},
                   {"context", 1 << 24, &out->context}};
    enum { LEAST = 4, MOST = sizeof figures / sizeof *figures };
    const char *at = text;
    int count = 0;
    for (; count < MOST; count++) {
        if (!read_figure(&at, figures[count].most, figures[count].value)) {
            log_format(
                message, size,
                "--model %.60s: the %s must be a whole number from 1 to %llu; a GPT-2 is 12x768x12x50257",
                text, figures[count].name, (unsigned long long)figures[count].most);
            return false;
        }
        if (*at != 'x')
            break;
        at++;
    }
    if (*at || count + 1 < LEAST) {
        log_format(message, size,
                   "--model %.60s: expected LAYERSxHIDDENxHEADSxVOCAB[xCONTEXT], as 12x768x12x50257", text);
        return false;
    }
    if (out->hidden % out->heads) {
        log_format(message, size, "--model %.60s: the hidden size must be a multiple of the heads", text);
        return false;
    }
    if (!list_tensors(out)) {
        log_format(message, size, "--model: memory is out");
        return false;
    }
    if (out->numel > PLAN_NUMEL_MAX) {
        log_format(message, size, "--model %.60s: more parameters than 2^46, which no machine here holds",
                   text);
        plan_model_free(out);
        return false;
    }
    return true;
}

enum { LAYER_KEPT = PLAN_LAYER_WHOLE + PLAN_LAYER_INSIDE };

static const double BYTES_MOST = 1e18; /* so that sums stay within 64 bits */

/* The size that the store would choose without a budget. The search takes a second for a thousand tensors. */
enum { SEARCHED_MOST = 512 };

static uint64_t find_chunk_bytes(const plan_model *m) {
    chunk_table table = {0};
    if (m->tensors == NULL || m->tensor_count > SEARCHED_MOST ||
        chunk_search_set(&table, m->tensors, m->tensor_count, 1, ELEMENT, INT64_MAX) != CASTOR_OK)
        return 0;
    return table.chunk_bytes;
}

bool plan_model_settle(plan_model *m, const plan_cluster *cluster, uint64_t tokens) {
    double h = (double)m->hidden, layers = (double)m->layers * 24 * h * h,
           attention = (double)m->layers * 4 * h * (double)m->context, head = 2 * h * (double)m->vocabulary;
    double forward = layers + attention + head, operations = 3 * forward * (double)tokens;
    double kept = (double)tokens * ELEMENT *
                  (LAYER_KEPT * (double)m->layers * h + PLAN_LOGITS_KEPT * (double)m->vocabulary);
    m->tokens = tokens;
    if (cluster->devices == 0)
        m->chunk_bytes = find_chunk_bytes(m);
    if (m->recorded)
        return true;
    m->head_share = head / forward;
    m->attention_share = attention / forward;
    /* A backward pass is two forward ones. */
    m->compute_seconds = operations / (cluster->devices ? cluster->device_flops : cluster->core_flops);
    m->process_bytes = (uint64_t)cluster->process;
    if (kept > BYTES_MOST)
        return false;
    m->logits_bytes = tokens * ELEMENT * PLAN_LOGITS_KEPT * m->vocabulary;
    m->activation_bytes = m->logits_bytes + tokens * ELEMENT * LAYER_KEPT * m->layers * m->hidden;
    return true;
}

void plan_model_free(plan_model *model) {
    free(model->tensors);
    model->tensors = NULL;
}

/* ---- from a run ---- */

static int compare_us(const void *left, const void *right) {
    uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
    return a < b ? -1 : a > b;
}

/* The median of what passes or steps took, without the first ones, which make states. */
static double median_seconds(const report_steps *steps) {
    uint32_t *us = malloc((steps->count + 1) * sizeof *us);
    double seconds = 0;
    size_t count = 0;
    if (us == NULL)
        return 0;
    for (size_t i = steps->count > 2 ? WARM_STEPS : 0; i < steps->count; i++)
        us[count++] = steps->rows[i].us;
    qsort(us, count, sizeof *us, compare_us);
    if (count)
        seconds = (us[count / 2] + (double)us[(count - 1) / 2]) / 2e6;
    free(us);
    return seconds;
}

/* The sizes of parameters, as the sums of their gradients tell them: rank 0's of the first step. */
typedef struct sizes {
    plan_model *model;
    size_t capacity;
} sizes;

static void take_size(void *context, const report_process *process, const trace_segment *segment,
                      const trace_record *record) {
    sizes *s = context;
    plan_model *m = s->model;
    (void)segment;
    if (record->kind != TRACE_REDUCE || process->counters->rank != 0 || record->id >= 1u << 20)
        return;
    if (record->id >= s->capacity) {
        size_t wanted = record->id + 64;
        uint64_t *larger = realloc(m->tensors, wanted * sizeof *larger);
        if (larger == NULL)
            return;
        memset(larger + s->capacity, 0, (wanted - s->capacity) * sizeof *larger);
        m->tensors = larger;
        s->capacity = wanted;
    }
    m->tensors[record->id] = record->bytes / ELEMENT;
}

static void close_sizes(plan_model *m, size_t capacity) {
    uint64_t sum = 0;
    for (size_t i = 0; i < capacity; i++) {
        uint64_t numel = m->tensors[i];
        if (numel == 0)
            continue;
        m->tensors[m->tensor_count++] = numel;
        m->largest = numel > m->largest ? numel : m->largest;
        sum += numel;
    }
    if (sum != m->numel) { /* other optimizers' models, parameters without gradients, a trace that was cut */
        free(m->tensors);
        m->tensors = NULL;
        m->tensor_count = 0;
    }
}

static bool refuse(const char *directory, const char *why) {
    LOG_E("plan: %s: %s", directory, why);
    return false;
}

static void take_command(const report *run, plan_model *m) {
    const char *started = about_find(&run->about, TRACE_ABOUT_COMMAND);
    snprintf(m->command, sizeof m->command, "%s", started != NULL ? started : run->command);
}

/* The script's own work, and the steps that owners made, as if one core or device did them. `cores`: of the machine that ran it. */
static void take_times(const plan_cluster *cluster, uint64_t cores, uint64_t ranks, double step,
                       double optimizer, plan_model *m) {
    uint64_t threads = cluster->threads ? cluster->threads : cores > ranks ? cores / ranks : 1;
    uint64_t wanted = m->on_devices ? ranks : ranks * threads;
    bool crowded = !m->on_devices && wanted >= cores;
    double busy = (double)(crowded ? cores : wanted);
    m->optimizer_seconds = optimizer * busy;
    m->compute_seconds = (step - optimizer) * busy;
    /* Where no core was free, ranks that added gradients took from the others. */
    double sums = ranks > 1 && crowded ? plan_sum_seconds(m, cluster) * (double)ranks : 0;
    m->compute_seconds -= sums < m->compute_seconds / 2 ? sums : m->compute_seconds / 2;
}

/* What the ranks of a run had at their peaks. */
typedef struct memory {
    uint64_t held, pss;      /* tensors; all of their memory */
    uint64_t blocks, beside; /* while they trained, without model data; of these, in memory of their own */
    bool tried;              /* each rank had computed some calls whole */
} memory;

/* The activations of a rank whose blocks were that many at the peak: then they were gradients that waited for their turns, and what was
 * left of the activations (backward_peak in cost.c). */
static uint64_t activations_of(uint64_t blocks, uint64_t gradients) {
    if (blocks >= gradients || gradients <= PLAN_QUEUE_BYTES)
        return blocks;
    double made = (double)PLAN_QUEUE_BYTES / (double)gradients,
           left = (double)blocks - (double)PLAN_QUEUE_BYTES;
    return left > 0 ? (uint64_t)(left / (1 - made)) : 0;
}

/* Where nothing is shared, gradients count and do not exist yet when activations are at their peak (reckon_plain_bytes in cost.c). */
static void take_memory(bool shared, uint64_t ranks, memory found, plan_model *m) {
    uint64_t beside = m->numel * ELEMENT * (shared ? 4 : 3 * ranks);
    m->activation_bytes = found.held > beside ? found.held - beside : 0;
    if (shared && found.blocks > 0) {
        m->activation_bytes =
            activations_of(found.blocks / ranks, m->numel * ELEMENT) * (found.tried ? 1 : ranks);
        m->loan_bytes = found.blocks - found.beside;
        found.held = beside + found.beside;
    }
    m->process_bytes = found.pss > found.held ? (found.pss - found.held) / ranks : 0;
}

static bool take_run(const report *run, const char *directory, const plan_cluster *cluster, plan_model *m) {
    uint64_t ranks = 0, steps = UINT64_MAX, param = 0;
    memory peaks = {0};
    double step = 0, optimizer = 0;
    for (size_t i = 0; i < run->rank_count; i++) {
        const report_rank *rank = &run->ranks[i];
        if (rank->steps == 0)
            continue;
        ranks++;
        peaks.held += rank->memory.peak_bytes;
        peaks.pss += report_gauge(rank->process, GAUGE_PSS_BYTES).max;
        peaks.blocks += report_gauge(rank->process, GAUGE_BLOCKS_BYTES).max;
        peaks.beside += report_gauge(rank->process, GAUGE_BLOCKS_BESIDE_BYTES).max;
        peaks.tried |= rank->calls_whole > 0;
        m->on_devices |= report_gauge(rank->process, GAUGE_DEVICE_PARAM_BYTES).max > 0;
        param += report_gauge(rank->process, GAUGE_PARAM_BYTES).max;
        steps = rank->steps < steps ? rank->steps : steps;
        step = rank->step_seconds > step ? rank->step_seconds : step;
        double took = median_seconds(&rank->process->steps);
        optimizer = took > optimizer ? took : optimizer;
    }
    if (ranks == 0)
        return refuse(directory, "no optimizer stepped in this run; record one that trains: castor run "
                                 "--plugin gemini -- COMMAND");
    if (steps < 2 || step <= 0)
        return refuse(directory, "a rank of this run made fewer than two steps; let the run make three");
    if (strcmp(run->plugin, "none") == 0)
        return refuse(directory, "this run had no plugin, so nobody counted the blocks of its tensors; "
                                 "record one with --plugin gemini");
    if (run->chunks.moves > 0)
        return refuse(
            directory,
            "this run moved chunks under a budget; record one without: --set CASTOR_MEMORY_BUDGET=0");
    for (size_t i = 0; i < run->node_count; i++)
        m->numel = run->nodes[i].numel > m->numel ? run->nodes[i].numel : m->numel;
    if (run->node_count > 1)
        return refuse(directory, "this run had several nodes; record one on a single node");
    bool shared = m->numel > 0;
    if (!shared)
        m->numel = param / ELEMENT / ranks;
    if (m->numel == 0 || m->numel > PLAN_NUMEL_MAX)
        return refuse(directory, "the run does not say how large its parameters are; record it under a "
                                 "plugin: castor run --plugin gemini "
                                 "-- COMMAND");
    m->recorded = true;
    m->ranks = (uint32_t)ranks;
    m->step_seconds = step;
    take_command(run, m);
    sizes s = {m, 0};
    if (shared && report_visit_records(run, take_size, &s))
        close_sizes(m, s.capacity);
    uint64_t cores = about_number(&run->about, TRACE_ABOUT_CORES);
    take_times(cluster, cores ? cores : cluster->cores, ranks, step, optimizer, m);
    take_memory(shared, ranks, peaks, m);
    return true;
}

bool plan_model_read(const char *directory, const plan_cluster *cluster, plan_model *out) {
    static report run;
    *out = (plan_model){0};
    bool taken = report_read(&run, directory);
    taken = taken && take_run(&run, directory, cluster, out);
    report_free(&run);
    if (!taken)
        plan_model_free(out);
    return taken;
}
