#include "plan.h"

#include <stdarg.h>
#include <string.h>
#include "launcher/common/json.h"
#include "launcher/common/text_table.h"
#include "launcher/report/report.h"

/* ---- the command line ---- */

typedef struct line {
    char *text;
    size_t size, used;
} line;

__attribute__((format(printf, 2, 3))) static void add(line *l, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(l->text + l->used, l->size - l->used, format, arguments);
    va_end(arguments);
    if (length > 0)
        l->used = l->used + (size_t)length < l->size ? l->used + (size_t)length : l->size - 1;
}

const char *plan_ranks_place(const char *command) {
    static const char *const names[] = {"--nproc-per-node", "--nproc_per_node"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *at = strstr(command, names[i]);
        size_t length = strlen(names[i]);
        if (at != NULL && (at[length] == ' ' || at[length] == '='))
            return at + length + 1;
    }
    return NULL;
}

/* Ranks of a script of one process are castor's, on one node and under a plugin; else a launcher of PyTorch starts those of a DDP
 * script. */
static void add_command(line *l, const plan_model *model, const plan_cluster *cluster, int plugin,
                        uint32_t ranks) {
    const char *command = model->command, *place = plan_ranks_place(command);
    if (place != NULL) {
        add(l, "-- %.*s%u%s", (int)(place - command), command, ranks, place + strcspn(place, " "));
    } else if (cluster->nodes > 1) {
        add(l,
            "-- torchrun --nnodes %u --node-rank RANK --nproc-per-node %u --master-addr ADDRESS train_ddp.py",
            cluster->nodes, ranks);
    } else if (ranks > 1 && !plan_plugins[plugin].engine) {
        add(l, "-- torchrun --nproc-per-node %u train_ddp.py", ranks);
    } else {
        if (ranks > 1)
            add(l, "--nproc %u ", ranks);
        add(l, "-- %s", command[0] ? command : "python train.py");
    }
}

void plan_command_line(const plan_model *model, const plan_cluster *cluster, const plan *plan, char *out,
                       size_t size) {
    line l = {out, size, 0};
    const plan_choice *choice = &plan->choice;
    out[0] = '\0';
    if (!plan_plugins[choice->plugin].runs)
        return;
    add(&l, "castor run --plugin %s ", plan_plugins[choice->plugin].name);
    if (plan->cost.budget_bytes)
        add(&l, "--set CASTOR_%s_BUDGET=%lluM ", cluster->devices ? "DEVICE" : "MEMORY",
            (unsigned long long)(plan->cost.budget_bytes >> 20));
    if (choice->offload)
        add(&l, "--set CASTOR_ACTIVATIONS=offload ");
    if (choice->tp > 1)
        add(&l, "--set CASTOR_TP=%u ", choice->tp);
    if (choice->pp > 1)
        add(&l, "--set CASTOR_PP=%u ", choice->pp);
    uint32_t steps = choice->own_batches ? choice->micro / choice->tp : choice->micro;
    if (choice->pp > 1)
        add(&l, "--set CASTOR_MICROBATCHES=%u ", choice->micro);
    else if (steps > 1)
        add(&l, "--set CASTOR_ACCUMULATE=%u ", steps);
    if ((cluster->devices || cluster->nodes > 1) && plan_plugins[choice->plugin].divides &&
        choice->zero != PLAN_ZERO_STAGES)
        add(&l, "--set CASTOR_ZERO_STAGE=%d ", choice->zero);
    if (!choice->tried && plan_is_split(model, cluster, choice))
        add(&l, "--set CASTOR_AUDIT=0 ");
    add_command(&l, model, cluster, choice->plugin, plan_ranks_of_node(cluster, choice));
}

/* ---- text ---- */

enum { ROWS_SHOWN = 24 };

static void bytes_cell(text_table *table, uint64_t bytes) {
    char figure[TEXT_FIGURE_MAX];
    text_table_add(table, "%s", bytes ? text_bytes(figure, bytes) : "-");
}

static void write_row(text_table *table, const plan_model *model, const plan_cluster *cluster,
                      const plan *p) {
    const plan_choice *choice = &p->choice;
    char figure[TEXT_FIGURE_MAX];
    text_table_add(table, "%s%s", plan_plugins[choice->plugin].name, choice->offload ? ", offload" : "");
    text_table_add(table, "%ux%ux%u", choice->tp, choice->pp, choice->dp);
    text_table_add(table, "%u", choice->micro);
    text_table_add(table, "%s", text_seconds(figure, p->cost.step_seconds));
    if (model->tokens)
        text_table_add(table, "%s",
                       text_count(figure, text_whole((double)model->tokens / p->cost.step_seconds)));
    else
        text_table_add(table, "-");
    if (cluster->devices)
        bytes_cell(table, p->cost.bytes[PLAN_TIER_DEVICE]);
    bytes_cell(table, p->cost.bytes[PLAN_TIER_HOST]);
    if (!cluster->devices)
        bytes_cell(table, p->cost.bytes[PLAN_TIER_DISK]);
    bytes_cell(table, cluster->devices ? p->cost.sent[PLAN_WAY_LINK] : p->cost.sent[PLAN_WAY_DISK]);
    bytes_cell(table, cluster->devices ? p->cost.sent[PLAN_WAY_NODE] : p->cost.chunk_bytes);
    bytes_cell(table, p->cost.sent[PLAN_WAY_NETWORK]);
    bytes_cell(table, p->cost.budget_bytes);
    text_table_add(table, "%s", p->reason);
}

/* The rows of the first `most` plans. */
static text_table make_table(const plan_model *model, const plan_cluster *cluster, const plans *plans,
                             size_t most) {
    static const char *const on_devices[] = {"plugin",   "tp x pp x dp", "micro",  "step",
                                             "tokens/s", "device",       "host",   "link",
                                             "sent",     "network",      "budget", "why not"};
    static const char *const on_cores[] = {"plugin",   "tp x pp x dp", "micro",  "step",
                                           "tokens/s", "memory",       "disk",   "moved",
                                           "chunk",    "network",      "budget", "why not"};
    text_table table = {.left = 1u | 1u << (TEXT_TABLE_COLUMNS - 1)};
    memcpy(table.headings, cluster->devices ? on_devices : on_cores, sizeof on_cores);
    for (size_t i = 0; i < plans->count && i < most; i++)
        write_row(&table, model, cluster, &plans->rows[i]);
    return table;
}

/* What is planned, for which machine, and from what; the best one's command, or why there is none. */
typedef struct head {
    char model[200], machine[200], source[200], best[PLAN_COMMAND_MAX + 256];
} head;

static void make_head(const plan_model *model, const plan_cluster *cluster, const plans *plans, head *h) {
    char figure[TEXT_FIGURE_MAX], other[TEXT_FIGURE_MAX];
    line l = {h->model, sizeof h->model, 0};
    add(&l, "%s parameters, %s of model data", text_count(figure, model->numel),
        text_bytes(other, model->numel * 16));
    if (model->tokens)
        add(&l, ", %s tokens a step", text_count(figure, model->tokens));
    l = (line){h->machine, sizeof h->machine, 0};
    add(&l, "%u node%s", cluster->nodes, cluster->nodes == 1 ? "" : "s");
    if (cluster->devices)
        add(&l, ", %u device%s each%s%s", cluster->devices, cluster->devices == 1 ? "" : "s",
            cluster->device_bytes ? " of " : "",
            cluster->device_bytes ? text_bytes(figure, cluster->device_bytes) : "");
    else
        add(&l, ", %u core%s each", cluster->cores, cluster->cores == 1 ? "" : "s");
    if (cluster->host_bytes)
        add(&l, ", %s of memory each", text_bytes(figure, cluster->host_bytes));
    l = (line){h->source, sizeof h->source, 0};
    if (model->recorded)
        add(&l, "a recorded step of %s on %u rank%s", text_seconds(figure, model->step_seconds), model->ranks,
            model->ranks == 1 ? "" : "s");
    else
        add(&l, "arithmetic: speeds are assumed (docs/plan.md); a recorded step gives measured ones");
    const plan *best = plans_best(plans);
    if (best != NULL)
        plan_command_line(model, cluster, best, h->best, sizeof h->best);
    else
        snprintf(h->best, sizeof h->best, "%s",
                 plans->count ? "nothing that castor runs fits"
                              : "no way to train divides this batch over these ranks; a larger --batch may");
}

static const char legend[] = "bytes of a device and of a node; of each device's link and other sends, and of "
                             "each node's disk and network, in a step";

void plan_write_text(const plan_model *model, const plan_cluster *cluster, const plans *plans, FILE *out) {
    head h;
    make_head(model, cluster, plans, &h);
    fprintf(out, "Castor plan: %s\n\n  machine  %s\n  from     %s\n  best     %s\n", h.model, h.machine,
            h.source, h.best);
    if (plans->count == 0)
        return;
    fprintf(out, "\nPlans (%s)\n", legend);
    text_table table = make_table(model, cluster, plans, ROWS_SHOWN);
    text_table_print(&table, out, 2);
    if (plans->count > ROWS_SHOWN)
        fprintf(out, "  and %zu more (--format json shows all)\n", plans->count - ROWS_SHOWN);
}

/* ---- a page: the report's style, and nothing that runs ---- */

static void write_element(const char *tag, const char *attributes, const char *text, FILE *out) {
    fprintf(out, "<%s%s>", tag, attributes);
    report_write_escaped(text, out);
    fprintf(out, "</%s>", tag);
}

static void write_rows(const plan_model *model, const plan_cluster *cluster, const plans *plans, FILE *out) {
    char command[PLAN_COMMAND_MAX + 256];
    text_table table = make_table(model, cluster, plans, plans->count);
    fputs("<div class=\"table\"><table><thead><tr>", out);
    for (int column = 0; column < TEXT_TABLE_COLUMNS; column++)
        write_element("th", "", table.headings[column], out);
    fputs("<th>command</th></tr></thead>\n<tbody>\n", out);
    for (size_t row = 0; !table.failed && row < plans->count; row++) {
        fputs("<tr>", out);
        for (int column = 0; column < TEXT_TABLE_COLUMNS; column++)
            write_element("td", "", table.cells[row * TEXT_TABLE_COLUMNS + (size_t)column], out);
        plan_command_line(model, cluster, &plans->rows[row], command, sizeof command);
        write_element("td", " class=\"mono\"", command, out);
        fputs("</tr>\n", out);
    }
    fputs("</tbody></table></div>\n", out);
    text_table_drop(&table);
}

void plan_write_html(const plan_model *model, const plan_cluster *cluster, const plans *plans, FILE *out) {
    head h;
    make_head(model, cluster, plans, &h);
    fputs("<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
          "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
          "'unsafe-inline'\">\n"
          "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>castor "
          "plan</title>\n<style>\n",
          out);
    fputs(report_page_style, out);
    fputs("</style>\n</head>\n<body>\n<main id=\"page\">\n<div class=\"eyebrow\"><span>Castor "
          "plan</span></div>\n",
          out);
    write_element("h1", "", h.model, out);
    write_element("code", " class=\"command\"", h.best, out);
    fputs("\n<dl class=\"about\"><dt>machine</dt>", out);
    write_element("dd", "", h.machine, out);
    fputs("<dt>from</dt>", out);
    write_element("dd", "", h.source, out);
    fputs("</dl>\n<h2>Plans</h2>\n", out);
    write_element("p", "", legend, out);
    write_rows(model, cluster, plans, out);
    fputs("</main>\n</body>\n</html>\n", out);
}

/* ---- JSON ---- */

static const char *const tier_keys[PLAN_TIER_COUNT] = {"device", "host", "disk"};
static const char *const way_keys[PLAN_WAY_COUNT] = {"link", "node", "network", "disk"};
static const char *const term_keys[PLAN_TERM_COUNT] = {
#define TERM(id, key, reason) key,
#include "term.def"
};

static void json_plan(json_writer *json, const plan_model *model, const plan_cluster *cluster,
                      const plan *p) {
    char command[PLAN_COMMAND_MAX + 256];
    const plan_choice *choice = &p->choice;
    const plan_cost *cost = &p->cost;
    json_object_begin(json, NULL);
    json_string(json, "plugin", plan_plugins[choice->plugin].name);
    json_unsigned(json, "ranks_per_node", plan_ranks_of_node(cluster, choice));
    json_unsigned(json, "tp", choice->tp);
    json_unsigned(json, "pp", choice->pp);
    json_unsigned(json, "dp", choice->dp);
    json_unsigned(json, "micro_batches", choice->micro);
    json_unsigned(json, "zero_stage",
                  (uint64_t)(plan_plugins[choice->plugin].divides ? choice->zero
                                                                  : plan_plugins[choice->plugin].shards));
    json_bool(json, "tried", choice->tried);
    json_string(json, "activations", choice->offload ? "offload" : "keep");
    json_unsigned_or_null(json, "budget_bytes", cost->budget_bytes);
    json_unsigned_or_null(json, "chunk_bytes", cost->chunk_bytes);
    json_bool(json, "fits", cost->fits);
    json_number(json, "step_seconds", cost->step_seconds);
    if (model->tokens)
        json_number(json, "tokens_per_second", (double)model->tokens / cost->step_seconds);
    else
        json_null(json, "tokens_per_second");
    json_object_begin(json, "seconds");
    for (int term = 0; term < PLAN_TERM_COUNT; term++)
        json_number(json, term_keys[term], cost->seconds[term]);
    json_object_end(json);
    json_object_begin(json, "bytes");
    for (int tier = 0; tier < PLAN_TIER_COUNT; tier++)
        json_unsigned(json, tier_keys[tier], cost->bytes[tier]);
    json_object_end(json);
    json_unsigned(json, "model_bytes", cost->model_bytes);
    json_unsigned(json, "activation_bytes", cost->activation_bytes);
    json_unsigned(json, "process_bytes", cost->process_bytes);
    json_object_begin(json, "sent_bytes");
    for (int way = 0; way < PLAN_WAY_COUNT; way++)
        json_unsigned(json, way_keys[way], cost->sent[way]);
    json_object_end(json);
    plan_command_line(model, cluster, p, command, sizeof command);
    json_string(json, "command", command[0] ? command : NULL);
    json_string(json, "why_not", p->reason[0] ? p->reason : NULL);
    json_object_end(json);
}

static void json_model(json_writer *json, const plan_model *model) {
    json_object_begin(json, "model");
    json_string(json, "from", model->recorded ? "recorded step" : "arithmetic");
    json_unsigned(json, "parameters", model->numel);
    json_unsigned_or_null(json, "tokens", model->tokens);
    json_unsigned(json, "activation_bytes", model->activation_bytes);
    json_unsigned(json, "process_bytes", model->process_bytes);
    json_number(json, "compute_seconds", model->compute_seconds);
    json_number(json, "optimizer_seconds", model->optimizer_seconds);
    if (model->recorded) {
        json_unsigned(json, "recorded_ranks", model->ranks);
        json_number(json, "recorded_step_seconds", model->step_seconds);
    }
    json_object_end(json);
}

static void json_cluster(json_writer *json, const plan_cluster *cluster) {
    json_object_begin(json, "machine");
    json_unsigned(json, "nodes", cluster->nodes);
    json_unsigned(json, "devices", cluster->devices);
    json_unsigned(json, "cores", cluster->cores);
    json_unsigned_or_null(json, "device_bytes", cluster->device_bytes);
    json_unsigned_or_null(json, "host_bytes", cluster->host_bytes);
#define ASSUMED(id, key, value, doc) json_number(json, key, cluster->id);
#include "assumed.def"
    json_object_end(json);
}

void plan_write_json(const plan_model *model, const plan_cluster *cluster, const plans *plans, FILE *out) {
    json_writer json = {.out = out};
    json_object_begin(&json, NULL);
    json_unsigned(&json, "plan_version", 1);
    json_model(&json, model);
    json_cluster(&json, cluster);
    json_unsigned(&json, "tried", plans->tried);
    json_array_begin(&json, "plans");
    for (size_t i = 0; i < plans->count; i++)
        json_plan(&json, model, cluster, &plans->rows[i]);
    json_array_end(&json);
    json_object_end(&json);
    fputc('\n', out);
}
