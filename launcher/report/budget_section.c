/* How the nodes' memory and the devices' kept to their budgets. */
#include <stdlib.h>
#include <string.h>
#include "report_json.h"
#include "text.h"

static const report_memory_kind disk_kinds[] = {REPORT_MEMORY_DISK_PARAM_BYTES, REPORT_MEMORY_DISK_GRAD_BYTES,
                                                REPORT_MEMORY_DISK_OPTIM_BYTES};
static const report_memory_kind device_kinds[] = {
    REPORT_MEMORY_DEVICE_PARAM_BYTES, REPORT_MEMORY_DEVICE_GRAD_BYTES, REPORT_MEMORY_DEVICE_OPTIM_BYTES};

static uint64_t sum_of(const report_memory *memory, const report_memory_kind kinds[3], uint32_t bucket) {
    uint64_t sum = 0;
    for (int i = 0; i < 3; i++)
        sum += memory->values[kinds[i]] != NULL ? memory->values[kinds[i]][bucket] : 0;
    return sum;
}

/* The gauges of a job that was sampled by nobody. */
static uint64_t sum_of_peaks(const report_process *process, const report_memory_kind kinds[3]) {
    uint64_t sum = 0;
    for (int i = 0; i < 3; i++)
        sum += report_gauge(process, report_memory_gauge(kinds[i])).max;
    return sum;
}

/* ---- nodes ---- */

static bool is_of(const report_node *node, const report_rank *rank) {
    return strcmp(node->host, rank->process->counters->host) == 0;
}

/* The least that was on disk in the bucket: as much as when most was in memory. */
static uint64_t disk_of(const report_memory *memory, uint32_t bucket) {
    uint64_t sum = 0;
    for (int kind = 0; kind < REPORT_MEMORY_COUNT; kind++)
        if (memory->loaded[kind] != NULL)
            sum += memory->values[kind][bucket] - memory->loaded[kind][bucket];
    return sum;
}

/* Adds the most that a rank had in memory, and the least on disk, to the buckets of its node, which are at least as wide as its own. */
static void add_rank(report_node_memory *node, const report_memory *rank) {
    const uint64_t *in_memory = rank->values[REPORT_MEMORY_IN_MEMORY_BYTES];
    uint32_t last = UINT32_MAX;
    uint64_t added[2] = {0, 0};
    for (uint32_t i = 0; i < rank->buckets; i++) {
        uint64_t since_ns = rank->begin_job_ns - node->begin_job_ns + i * rank->width_ns;
        uint32_t to = (uint32_t)(since_ns / node->width_ns);
        uint64_t values[2] = {in_memory != NULL ? in_memory[i] : 0, disk_of(rank, i)};
        uint64_t *sums[2] = {node->in_memory, node->on_disk};
        for (int part = 0; part < 2 && to < node->buckets; part++) {
            uint64_t before = to == last ? added[part] : 0;
            bool keep = to == last && (part == 0 ? before > values[0] : before < values[1]);
            added[part] = keep ? before : values[part];
            sums[part][to] += added[part] - before;
        }
        last = to;
    }
}

static bool find_timeline(const report *report, report_node *node) {
    report_node_memory *memory = &node->memory;
    uint64_t begin_ns = UINT64_MAX, end_ns = 0, width_ns = 0;
    for (size_t i = 0; i < report->rank_count; i++) {
        const report_memory *rank = &report->ranks[i].memory;
        if (!is_of(node, &report->ranks[i]) || rank->buckets == 0)
            continue;
        uint64_t rank_end_ns = rank->begin_job_ns + rank->width_ns * rank->buckets;
        begin_ns = rank->begin_job_ns < begin_ns ? rank->begin_job_ns : begin_ns;
        end_ns = rank_end_ns > end_ns ? rank_end_ns : end_ns;
        width_ns = rank->width_ns > width_ns ? rank->width_ns : width_ns;
    }
    if (width_ns == 0)
        return true;
    while ((end_ns - begin_ns) / width_ns >= REPORT_SERIES_BUCKETS)
        width_ns *= 2;
    memory->begin_job_ns = begin_ns;
    memory->width_ns = width_ns;
    memory->buckets = (uint32_t)((end_ns - begin_ns + width_ns - 1) / width_ns);
    memory->in_memory = calloc(memory->buckets, sizeof *memory->in_memory);
    memory->on_disk = calloc(memory->buckets, sizeof *memory->on_disk);
    if (memory->in_memory == NULL || memory->on_disk == NULL)
        return false;
    for (size_t i = 0; i < report->rank_count; i++)
        if (is_of(node, &report->ranks[i]) && report->ranks[i].memory.buckets > 0)
            add_rank(memory, &report->ranks[i].memory);
    for (uint32_t i = 0; i < memory->buckets; i++) {
        if (memory->in_memory[i] > memory->in_memory_peak_bytes) {
            memory->in_memory_peak_bytes = memory->in_memory[i];
            memory->on_disk_then_bytes = memory->on_disk[i];
        }
        if (memory->on_disk[i] > memory->on_disk_peak_bytes)
            memory->on_disk_peak_bytes = memory->on_disk[i];
    }
    return true;
}

/* The sums of the ranks' own peaks, where there are no samples. */
static void find_peaks(const report *report, report_node *node) {
    for (size_t i = 0; i < report->rank_count; i++) {
        const report_process *process = report->ranks[i].process;
        if (!is_of(node, &report->ranks[i]))
            continue;
        node->memory.in_memory_peak_bytes += report_gauge(process, GAUGE_IN_MEMORY_BYTES).max;
        node->memory.on_disk_peak_bytes += sum_of_peaks(process, disk_kinds);
    }
}

bool report_find_budgets(report *report) {
    for (size_t i = 0; i < report->node_count; i++) {
        report_node *node = &report->nodes[i];
        bool counted = false;
        for (size_t j = 0; j < report->rank_count; j++) {
            const report_process *process = report->ranks[j].process;
            if (!is_of(node, &report->ranks[j]))
                continue;
            uint64_t budget = report_gauge(process, GAUGE_MEMORY_BUDGET_BYTES).last;
            node->budget_bytes = budget > node->budget_bytes ? budget : node->budget_bytes;
            counted |= budget > 0 || sum_of_peaks(process, disk_kinds) > 0;
        }
        if (counted && !find_timeline(report, node))
            return false;
        if (counted && node->memory.buckets == 0)
            find_peaks(report, node);
    }
    return true;
}

void report_free_budgets(report *report) {
    for (size_t i = 0; i < report->node_count; i++) {
        free(report->nodes[i].memory.in_memory);
        free(report->nodes[i].memory.on_disk);
    }
}

/* The node whose ranks filled their budget most, or that has something on disk; NULL: none has either. */
static const report_node *bounded_node(const report *report) {
    const report_node *found = NULL;
    double most = -1;
    for (size_t i = 0; i < report->node_count; i++) {
        const report_node *node = &report->nodes[i];
        if (node->budget_bytes == 0 && node->memory.on_disk_peak_bytes == 0)
            continue;
        double filled = node->budget_bytes > 0
                            ? (double)node->memory.in_memory_peak_bytes / (double)node->budget_bytes
                            : 0;
        if (filled > most) {
            found = node;
            most = filled;
        }
    }
    return found;
}

/* ---- devices ---- */

/* The most that homes took of a device with a budget; 0 in *budget_bytes: there is none. */
static uint64_t device_peak(const report *report, uint64_t *budget_bytes) {
    uint64_t most = 0;
    *budget_bytes = 0;
    for (size_t i = 0; i < report->rank_count; i++) {
        const report_rank *rank = &report->ranks[i];
        uint64_t peak = rank->memory.buckets == 0 ? sum_of_peaks(rank->process, device_kinds) : 0;
        for (uint32_t bucket = 0; bucket < rank->memory.buckets; bucket++) {
            uint64_t sum = sum_of(&rank->memory, device_kinds, bucket);
            peak = sum > peak ? sum : peak;
        }
        uint64_t outside = report_gauge(rank->process, GAUGE_DEVICE_OUTSIDE_BYTES).last;
        peak -= outside < peak ? outside : peak;
        if (rank->device.budget_bytes > 0 && peak >= most) {
            most = peak;
            *budget_bytes = rank->device.budget_bytes;
        }
    }
    return most;
}

/* ---- what the report says of it ---- */

void report_text_budgets(const report *report, FILE *out) {
    char figures[3][TEXT_FIGURE_MAX];
    const report_node *node = bounded_node(report);
    if (node != NULL) {
        const report_node_memory *memory = &node->memory;
        bool counted = memory->in_memory_peak_bytes > 0;
        fprintf(out, "  memory    ");
        if (counted)
            fprintf(out, "%s", text_bytes(figures[0], memory->in_memory_peak_bytes));
        if (counted && node->budget_bytes > 0)
            fprintf(out, " of the budget of %s", text_bytes(figures[1], node->budget_bytes));
        if (counted)
            fprintf(out, " in memory at the peak, and ");
        fprintf(out, "%s on disk%s%s\n",
                text_bytes(figures[2], counted && memory->on_disk != NULL ? memory->on_disk_then_bytes
                                                                          : memory->on_disk_peak_bytes),
                report->node_count > 1 ? "; node " : "", report->node_count > 1 ? node->host : "");
    }
    uint64_t budget, peak = device_peak(report, &budget);
    if (budget > 0)
        fprintf(out, "  devices   %s of the budget of %s for model data on the fullest device\n",
                text_bytes(figures[0], peak), text_bytes(figures[1], budget));
}

void report_json_highest(json_writer *json, const char *key, const uint64_t *values, uint32_t buckets,
                         uint32_t together) {
    json_figures_begin(json, key);
    for (uint32_t from = 0; from < buckets; from += together) {
        uint64_t most = 0;
        for (uint32_t i = from; i < from + together && i < buckets; i++)
            most = values[i] > most ? values[i] : most;
        json_unsigned(json, NULL, most);
    }
    json_figures_end(json);
}

static void write_node(json_writer *json, const report_node *node, const report_limits *limits) {
    const report_node_memory *memory = &node->memory;
    uint32_t together = (memory->buckets + limits->memory_points - 1) / limits->memory_points;
    json_object_begin(json, NULL);
    json_string(json, "host", node->host);
    json_unsigned_or_null(json, "budget_bytes", node->budget_bytes);
    json_unsigned(json, "in_memory_peak_bytes", memory->in_memory_peak_bytes);
    if (memory->buckets > 0)
        json_unsigned(json, "on_disk_then_bytes", memory->on_disk_then_bytes);
    else
        json_null(json, "on_disk_then_bytes");
    json_unsigned(json, "on_disk_peak_bytes", memory->on_disk_peak_bytes);
    json_number(json, "begin_seconds", (double)memory->begin_job_ns / 1e9);
    json_number(json, "interval_seconds", (double)(memory->width_ns * together) / 1e9);
    report_json_highest(json, "in_memory", memory->in_memory, memory->buckets, together);
    report_json_highest(json, "on_disk", memory->on_disk, memory->buckets, together);
    json_object_end(json);
}

void report_json_budgets(json_writer *json, const report *report, const report_limits *limits) {
    uint64_t budget, peak = device_peak(report, &budget);
    json_object_begin(json, "budgets");
    json_array_begin(json, "nodes");
    for (size_t i = 0, shown = 0; i < report->node_count && shown < limits->rows; i++) {
        const report_node *node = &report->nodes[i];
        if (node->budget_bytes == 0 && node->memory.on_disk_peak_bytes == 0)
            continue;
        write_node(json, node, limits);
        shown++;
    }
    json_array_end(json);
    if (budget > 0) {
        json_object_begin(json, "device");
        json_unsigned(json, "budget_bytes", budget);
        json_unsigned(json, "peak_bytes", peak);
        json_object_end(json);
    } else {
        json_null(json, "device");
    }
    json_object_end(json);
}
