#include "plan.h"
#include "paging.h"

#include <string.h>
#include "parallel/mesh.h"
#include "parallel/pipeline.h"

/* Bytes and seconds of one choice. Each figure is a sum over what lies or happens somewhere; the rules of where are
 * docs/nodes.md (on cores) and docs/device-ranks.md (on devices). */

enum {
    ELEMENT = 4, /* bytes of a parameter, of its gradient, of each of its two states */
    STATES = 2 * ELEMENT,
    STEP_BYTES =
        28, /* that an Adam reads (parameter, gradient, states) and writes (parameter, states), of an element */
    SUM_BYTES = 12, /* that the addition of a gradient to a sum reads and writes, of an element */
    BUCKETS = 4,    /* of sums, that a device has at a time while a backward runs */
    /* Of a token and a layer that ranks have together, in elements of the hidden size: what is added, forward after the inner products
     * and backward before these and before the ones of attention; what is put together forward: queries, keys and values, and what
     * comes after attention. */
    LAYER_ADDED = 4,
    LAYER_GATHERED = 4,
    CHUNKS_OF_BUDGET = 64, /* docs/budget.md */
    UNKNOWN_LAYERS = 16,   /* of a recorded step, whose parts are taken to be equal */
};
static const uint64_t bucket_bytes = 25 << 20, broadcast_bytes = UINT64_C(500) << 20, demand_bytes = 32 << 20,
                      least_chunk_bytes = 2 << 20;
static const double slot_passes =
    1.93; /* parameters on the host come to the device nearly twice in a step (docs/device-ranks.md) */
static const double steady_ratio = 0.9; /* of a budget (CASTOR_STEADY_CAP_RATIO) */

/* Those of job/plugins.def, and the Booster's plugin, which a script asks for by itself: no command line does. */
const plan_plugin plan_plugins[PLAN_PLUGINS] = {
#define PLUGIN(id, name, engine, shards, doc)                                                                \
    [CASTOR_PLUGIN_##id] = {name, shards, engine, CASTOR_PLUGIN_##id == CASTOR_PLUGIN_HYBRID, true},
#include "job/plugins.def"
    [PLAN_BOOSTER] = {"HybridParallelPlugin", 0, true, true, false},
};

static uint64_t at_least(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}
static uint64_t at_most(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}
static uint64_t without(uint64_t a, uint64_t b) {
    return a > b ? a - b : 0;
}
static uint64_t divided(uint64_t a, uint64_t by) {
    return a / by + (a % by != 0);
}

static uint32_t world_of(const plan_choice *choice) {
    return choice->tp * choice->pp * choice->dp;
}

bool plan_is_split(const plan_model *model, const plan_cluster *cluster, const plan_choice *choice) {
    return world_of(choice) > 1 && cluster->nodes == 1 && plan_plugins[choice->plugin].engine &&
           choice->plugin != PLAN_BOOSTER && plan_ranks_place(model->command) == NULL;
}

/* Stages of the product's `--plugin hybrid`, which sum gradients when all are there. */
static bool is_staged(const plan_choice *choice) {
    return choice->plugin == CASTOR_PLUGIN_HYBRID && choice->pp > 1;
}

/* All forward passes are run, then all backward ones; such stages do so unless there are more micro-batches than stages. */
static bool keeps_all(const plan_choice *choice) {
    return is_staged(choice) ? choice->micro <= choice->pp : choice->own_batches;
}

/* Micro-batches of a backward pass of the script's. */
static uint32_t micro_of_pass(const plan_choice *choice) {
    return choice->pp > 1 ? choice->micro : choice->own_batches ? choice->tp : 1;
}

/* How often the gradients of a step are summed over ranks. */
static uint32_t sums_of(const plan_choice *choice) {
    return choice->micro / micro_of_pass(choice);
}

static int stage_of_zero(const plan_choice *choice) {
    return plan_plugins[choice->plugin].divides ? choice->zero : plan_plugins[choice->plugin].shards;
}

/* What nodes of cores share out. Under a budget each has its chunks in files on its disk, and only states can be elsewhere. */
static int stage_over_nodes(const plan_choice *choice) {
    int stage = stage_of_zero(choice);
    return choice->bounded && stage > 1 ? 1 : stage;
}

/* The layers of the largest stage: each has as many, since their bytes are equal. */
static double stage_layers(const plan_model *model, const plan_choice *choice) {
    return model->layers ? (double)divided(model->layers, choice->pp) / (double)model->layers : 1;
}

/* What a rank has at most while activations go and gradients come, of which so many bytes wait at a time. */
static uint64_t backward_peak(uint64_t activations, uint64_t gradients, uint64_t waiting) {
    double made = gradients > waiting ? (double)waiting / (double)gradients : 1;
    return at_least(activations, (uint64_t)((1 - made) * (double)activations + made * (double)gradients));
}

double plan_sum_seconds(const plan_model *model, const plan_cluster *cluster) {
    return (double)model->numel * SUM_BYTES / cluster->core_stream;
}

uint32_t plan_ranks_of_node(const plan_cluster *cluster, const plan_choice *choice) {
    return (uint32_t)divided(world_of(choice), cluster->nodes);
}

/* Seconds of a collective of `bytes` in all among `ranks`, whose slowest way carries so many bytes a second. Costs are counted in
 * microseconds, beside which the mesh's constants for order are nothing. */
static double collective_seconds(const plan_cluster *cluster, mesh_collective collective, double bytes,
                                 uint32_t ranks, double bytes_per_second) {
    mesh m;
    int32_t shape = (int32_t)ranks;
    double alpha = cluster->latency * 1e6, beta = 1e6 / bytes_per_second, cost = 0;
    if (ranks < 2 || bytes <= 0 || mesh_make(&m, NULL, shape, &shape, 1, &alpha, &beta) != CASTOR_OK ||
        mesh_cost(&m, collective, bytes, 0, &cost) != CASTOR_OK)
        return 0;
    return cost / 1e6;
}

/* ---- divided models ---- */

/* How many micro-batches the first stage has between forward and backward at most. */
static uint32_t most_alive(const plan_choice *choice) {
    static pipeline_operation operations[2 * PLAN_LAYERS_MAX];
    pipeline p = {PIPELINE_1F1B, (int32_t)choice->pp, (int32_t)choice->micro, 1};
    uint64_t count = 0;
    uint32_t alive = 0, most = 0;
    if (keeps_all(choice))
        return micro_of_pass(choice);
    if (choice->pp == 1 ||
        pipeline_operations(&p, 0, operations, sizeof operations / sizeof *operations, &count) != CASTOR_OK)
        return 1;
    for (uint64_t i = 0; i < count; i++) {
        alive += operations[i].kind == PASS_FORWARD ? 1 : -1;
        most = alive > most ? alive : most;
    }
    return most;
}

/* Of a rank, in the stage that has most (of_all: the mean of a replica's). Where all micro-batches are alive at a time, they keep one
 * of the three parts of their logits; under 1F1B the first stage has most of them alive, each one behind it one less, the last one
 * the logits of one. */
static uint64_t activations_of(const plan_model *model, const plan_choice *choice, bool of_all) {
    double one = 1.0 / choice->dp / choice->micro, logits = (double)model->logits_bytes * one;
    double whole =
        (PLAN_LAYER_WHOLE + (double)PLAN_LAYER_INSIDE / choice->tp) / (PLAN_LAYER_WHOLE + PLAN_LAYER_INSIDE);
    double layers = (double)(model->activation_bytes - model->logits_bytes) * one * whole;
    double first = most_alive(choice), last = keeps_all(choice) ? first : 1;
    double part = stage_layers(model, choice);
    logits *= (last + PLAN_LOGITS_KEPT - 1) / PLAN_LOGITS_KEPT;
    if (of_all)
        return (uint64_t)((layers * (first + last) / 2 + logits) / choice->pp);
    return at_least((uint64_t)(layers * part * first), (uint64_t)(layers * part * last + logits));
}

/* Of one core or device: ranks that have layers together compute attention each for itself. */
static double work_of(const plan_model *model, const plan_choice *choice) {
    return model->compute_seconds * (1 + model->attention_share * (choice->tp - 1));
}

/* With M micro-batches the last stage, which has the head, begins after the others' first pass (parallel/pipeline.h). `speed`: cores or
 * devices of a rank. */
static void reckon_stages(const plan_model *model, const plan_choice *choice, double speed, plan_cost *cost) {
    double largest = (1 - model->head_share) * stage_layers(model, choice) + model->head_share;
    double replica = work_of(model, choice) / (choice->dp * choice->tp * speed), m = micro_of_pass(choice);
    double busy = replica * (1 + (m - 1) * largest) / m;
    if (choice->pp > 1 && busy > cost->seconds[PLAN_TERM_COMPUTE])
        cost->seconds[PLAN_TERM_IDLE] = busy - cost->seconds[PLAN_TERM_COMPUTE];
}

/* What ranks that have layers together send each other, and stages the next ones, at so many bytes a second. */
static void reckon_tensor(const plan_model *model, const plan_cluster *cluster, const plan_choice *choice,
                          double rate, plan_cost *cost) {
    double element = (double)model->tokens / choice->dp / choice->micro * ELEMENT, t = choice->tp;
    double hidden = element * (double)model->hidden, logits = element * (double)model->vocabulary;
    double layers = (double)divided(model->layers, choice->pp) * choice->micro, sent = 0, seconds = 0;
    if (choice->tp > 1) {
        seconds =
            layers * LAYER_ADDED * collective_seconds(cluster, MESH_ALL_REDUCE, hidden, choice->tp, rate);
        seconds +=
            layers * 2 *
            collective_seconds(cluster, MESH_ALL_GATHER, hidden * LAYER_GATHERED / 2, choice->tp, rate);
        seconds += choice->micro * collective_seconds(cluster, MESH_ALL_GATHER, logits, choice->tp, rate);
        sent = (layers * (2 * LAYER_ADDED + LAYER_GATHERED) * hidden + choice->micro * logits) * (t - 1) / t;
    }
    if (choice->pp > 1) {
        /* Activations, and their gradients back; the ranks of a stage share a node's way to the next one. */
        bool leaves = choice->tp * choice->pp > plan_ranks_of_node(cluster, choice);
        double passed = 2 * hidden * choice->micro, way = leaves ? cluster->network / choice->tp : rate;
        sent += passed;
        seconds += passed / way + 2 * choice->micro * cluster->latency;
        if (leaves)
            cost->sent[PLAN_WAY_NETWORK] += (uint64_t)(passed * t);
    }
    cost->seconds[PLAN_TERM_TENSOR] = seconds;
    if (cluster->devices)
        cost->sent[PLAN_WAY_NODE] += (uint64_t)sent;
}

/* ---- on cores: the node's store ---- */

typedef struct store_parts {
    uint64_t param, grad, states, transient;
} store_parts;

/* What a node's store keeps, docs/nodes.md; and what a node has besides while a step runs. */
static store_parts store_of(const plan_model *model, const plan_cluster *cluster, const plan_choice *choice) {
    uint64_t n = cluster->nodes, bytes = model->numel * ELEMENT, ranks = plan_ranks_of_node(cluster, choice);
    uint64_t sum_bytes = model->largest ? model->largest * ELEMENT : 2 * demand_bytes;
    int shards = stage_over_nodes(choice);
    store_parts parts = {shards >= 3 ? divided(bytes, n) : bytes, shards >= 2 ? divided(bytes, n) : bytes,
                         shards >= 1 ? 2 * divided(bytes, n) : 2 * bytes, 0};
    if (n > 1 && shards >= 2) /* sums that are not passed on yet, and parameters that were fetched */
        parts.transient = at_most(bytes - parts.grad, ranks * sum_bytes) +
                          (shards >= 3 ? at_most(bytes - parts.param, 2 * ranks * demand_bytes) : 0);
    return parts;
}

/* Without an engine each rank has all, and DistributedDataParallel its buckets. Of what comes and goes in a step, malloc keeps a
 * part in holes. */
static void reckon_plain_bytes(const plan_model *model, const plan_cluster *cluster,
                               const plan_choice *choice, plan_cost *cost) {
    uint64_t ranks = plan_ranks_of_node(cluster, choice), bytes = model->numel * ELEMENT;
    uint64_t activations = model->activation_bytes / choice->micro / world_of(choice);
    uint64_t holes = (uint64_t)(cluster->holes * (double)(activations + bytes));
    cost->model_bytes = (world_of(choice) > 1 ? 5 : 4) * bytes * ranks;
    cost->activation_bytes = (backward_peak(activations, bytes, bytes) - bytes + holes) * ranks;
}

/* `parallel`: cores of a node that compute at a time; they carry what is sent, too. */
static void reckon_store_traffic(const plan_model *model, const plan_cluster *cluster,
                                 const plan_choice *choice, double parallel, plan_cost *cost) {
    uint32_t n = cluster->nodes;
    int shards = stage_over_nodes(choice);
    mesh_collective collective = shards >= 2 ? MESH_REDUCE_SCATTER : MESH_ALL_REDUCE;
    double bytes = (double)model->numel * ELEMENT, part = bytes * (n - 1) / n;
    double sums = (shards >= 2 ? part : 2 * part) * sums_of(choice);
    double parameters = shards >= 1 ? part : 0; /* sent after the step, or fetched when they are touched */
    double exchange = collective_seconds(cluster, collective, bytes, n, cluster->network) * sums_of(choice);
    double hidden = cluster->overlap * cost->seconds[PLAN_TERM_COMPUTE] * 2 / 3;
    double busy = (sums + parameters) * cluster->carry + (shards >= 3 ? parameters * cluster->fetch : 0);
    cost->sent[PLAN_WAY_NETWORK] = (uint64_t)(sums + parameters);
    cost->seconds[PLAN_TERM_SUMS] = (exchange > hidden ? exchange - hidden : 0) + busy / parallel;
    if (shards >= 1)
        cost->seconds[PLAN_TERM_SUMS] +=
            collective_seconds(cluster, MESH_ALL_GATHER, bytes, n, cluster->network);
}

/* Of one rank, since each has a manager for what it owns. */
static paging_result reckon_paging(const plan_model *model, const plan_cluster *cluster,
                                   const plan_choice *choice, const plan_cost *cost) {
    uint64_t ranks = plan_ranks_of_node(cluster, choice);
    store_parts parts = store_of(model, cluster, choice);
    paging_request request;
    memset(&request, 0, sizeof request); /* padding too: requests are compared */
    request.kept_bytes[CHUNK_PARAM] = parts.param / ranks;
    request.kept_bytes[CHUNK_GRAD] = parts.grad / ranks;
    request.kept_bytes[CHUNK_OPTIM] = parts.states / ranks;
    request.chunk_bytes = cost->chunk_bytes;
    request.activation_bytes = cost->activation_bytes / ranks;
    request.budget_bytes = cost->budget_bytes / ranks;
    request.groups = model->layers ? model->layers : UNKNOWN_LAYERS;
    request.compute_seconds = cost->seconds[PLAN_TERM_COMPUTE];
    request.optimizer_seconds = cost->seconds[PLAN_TERM_OPTIMIZER];
    request.disk_bytes_per_second = cluster->disk / (double)ranks;
    return paging_find(&request);
}

/* The node's budget is what processes leave; returns what is in memory of all that counts against it. */
static uint64_t reckon_node_budget(const plan_model *model, const plan_cluster *cluster,
                                   const plan_choice *choice, double parallel, plan_cost *cost) {
    uint64_t budget = without(cluster->host_bytes, cost->process_bytes) >> 20 << 20;
    uint64_t all = cost->model_bytes + cost->activation_bytes, ranks = plan_ranks_of_node(cluster, choice);
    uint64_t most = at_least(budget / CHUNKS_OF_BUDGET, least_chunk_bytes);
    cost->budget_bytes = budget;
    cost->chunk_bytes = model->chunk_bytes ? at_most(model->chunk_bytes, most) : most;
    paging_result paging = reckon_paging(model, cluster, choice, cost);
    if (!paging.fits)
        return at_least(all, budget + 1);
    cost->sent[PLAN_WAY_DISK] = paging.moved_bytes * ranks;
    cost->bytes[PLAN_TIER_DISK] = paging.moved_bytes ? cost->model_bytes : 0; /* files back all chunks */
    cost->seconds[PLAN_TERM_DISK] = paging.wait_seconds + (double)cost->sent[PLAN_WAY_DISK] /
                                                              (double)cost->chunk_bytes * cluster->paging /
                                                              parallel;
    /* Of the last chunk that each rank could have a half has room, on average. */
    return at_most(without((uint64_t)(steady_ratio * (double)budget), ranks * cost->chunk_bytes / 2), all);
}

/* Of one rank, in calls that each computes whole. */
static uint64_t tried_activations(const plan_model *model, const plan_choice *choice) {
    return choice->tried ? model->activation_bytes / (is_staged(choice) ? 1 : choice->micro) : 0;
}

/* Of a rank while it trains: activations, and gradients that the node's sums do not have yet. Stages give theirs at the end: they
 * have them from the first of their backward passes on, under 1F1B beside all activations. */
static uint64_t rank_peak(const plan_model *model, const plan_choice *choice) {
    uint64_t bytes = model->numel * ELEMENT, activations = activations_of(model, choice, true);
    uint64_t tried = tried_activations(model, choice);
    if (!is_staged(choice))
        return backward_peak(at_least(tried, activations), bytes, PLAN_QUEUE_BYTES);
    uint64_t gradients = (bytes + model->vocabulary * model->hidden * ELEMENT) / choice->pp;
    uint64_t late = activations - (keeps_all(choice) ? activations / most_alive(choice) : 0) + gradients;
    return at_least(at_least(late, activations), tried);
}

/* Of a node's `beside` bytes, what lies on idle sums. By arithmetic: a block of so many tokens' rows has room in the sum of a weight
 * that is as large, of those that its rank owns. */
static uint64_t loans_of(const plan_model *model, const plan_cluster *cluster, const plan_choice *choice,
                         uint64_t beside) {
    /* Sums that several nodes make, or that go to disk, lend nothing (window_lease_begin). */
    if (cluster->nodes > 1 || choice->bounded)
        return 0;
    if (model->recorded)
        return model->loan_bytes;
    uint64_t calls = choice->tried && is_staged(choice) ? 1 : choice->micro;
    uint64_t tokens = model->tokens / calls / (choice->tried ? 1 : choice->dp);
    return tokens <= model->hidden ? at_most(model->numel * ELEMENT, beside) : 0;
}

static void reckon_core_memory(const plan_model *model, const plan_cluster *cluster,
                               const plan_choice *choice, bool engine, plan_cost *cost) {
    if (!engine) {
        reckon_plain_bytes(model, cluster, choice, cost);
        return;
    }
    store_parts parts = store_of(model, cluster, choice);
    uint64_t ranks = plan_ranks_of_node(cluster, choice), beside = rank_peak(model, choice) * ranks;
    cost->model_bytes = parts.param + parts.grad + parts.states;
    cost->activation_bytes = without(beside, loans_of(model, cluster, choice, beside)) + parts.transient;
    cost->chunk_bytes = model->chunk_bytes;
}

/* Before they share it, each rank of a node builds the whole model; DistributedDataParallel copies it, to send it to all. */
static uint64_t start_bytes(const plan_model *model, const plan_cluster *cluster, const plan_choice *choice) {
    uint64_t bytes = model->numel * ELEMENT, ranks = plan_ranks_of_node(cluster, choice);
    bool copies = world_of(choice) > 1 && !plan_is_split(model, cluster, choice);
    return (bytes + (copies ? at_most(bytes, broadcast_bytes) : 0)) * ranks;
}

/* `parallel`: cores of all nodes that compute at a time. */
static void reckon_core_times(const plan_model *model, const plan_cluster *cluster, const plan_choice *choice,
                              bool engine, uint64_t threads, double parallel, plan_cost *cost) {
    uint32_t n = cluster->nodes, ranks = plan_ranks_of_node(cluster, choice), world = world_of(choice);
    double bytes = (double)model->numel * ELEMENT;
    double step =
        model->recorded ? model->optimizer_seconds : (double)model->numel * STEP_BYTES / cluster->core_stream;
    /* Under an engine one owner steps a parameter: on one of the nodes where these share states, else on each. */
    uint32_t steps = !engine ? world : stage_of_zero(choice) >= 1 ? 1 : n;
    double node = cluster->core_stream / SUM_BYTES * ELEMENT;
    cost->seconds[PLAN_TERM_COMPUTE] = work_of(model, choice) / parallel;
    cost->seconds[PLAN_TERM_OPTIMIZER] = step * steps / parallel;
    reckon_stages(model, choice, (double)at_least(at_most(threads, cluster->cores), 1), cost);
    if (engine) {
        reckon_store_traffic(model, cluster, choice, parallel / n, cost);
        /* A stage adds its part, once; a rank that has layers with others adds all of their gradients, its own and zeros. */
        double times = (double)sums_of(choice) / (is_staged(choice) ? choice->pp : 1);
        cost->seconds[PLAN_TERM_SUMS] += plan_sum_seconds(model, cluster) * world * times / parallel;
        reckon_tensor(model, cluster, choice, node, cost);
    } else if (world > 1) {
        cost->sent[PLAN_WAY_NETWORK] = (uint64_t)(2 * bytes * (n - 1) / n) * ranks;
        cost->seconds[PLAN_TERM_SUMS] = collective_seconds(cluster, MESH_ALL_REDUCE, bytes, world,
                                                           n > 1 ? cluster->network / ranks : node);
    }
}

static void reckon_on_cores(const plan_model *model, const plan_cluster *cluster, const plan_choice *choice,
                            plan_cost *cost) {
    uint64_t ranks = plan_ranks_of_node(cluster, choice);
    uint64_t threads = cluster->threads ? cluster->threads : at_least(cluster->cores / ranks, 1);
    double parallel = (double)at_most(ranks * threads, cluster->cores);
    bool engine = plan_plugins[choice->plugin].engine && world_of(choice) > 1;
    cost->process_bytes = model->process_bytes * ranks;
    reckon_core_memory(model, cluster, choice, engine, cost);
    reckon_core_times(model, cluster, choice, engine, threads, parallel * cluster->nodes, cost);
    uint64_t used = cost->model_bytes + cost->activation_bytes;
    if (choice->bounded && cluster->host_bytes)
        used = reckon_node_budget(model, cluster, choice, parallel, cost);
    used = at_least(used, start_bytes(model, cluster, choice));
    cost->bytes[PLAN_TIER_HOST] = used + cost->process_bytes;
}

/* ---- on devices ---- */

typedef struct device_parts {
    double numel; /* of this device's stage and part of layers */
    uint64_t param, grad, states, buckets, activations;
} device_parts;

/* Ranks that have the same parameters, and divide what ZeRO divides: under `--plugin hybrid` all have all of them. */
static uint32_t sharers_of(const plan_choice *choice) {
    return choice->plugin == CASTOR_PLUGIN_HYBRID ? world_of(choice) : choice->dp;
}

/* A device has the parameters of its stage alone, and those that are in none. */
static bool has_its_stage(const plan_choice *choice) {
    return is_staged(choice) && choice->zero >= 3;
}

/* docs/device-ranks.md: what is where. The Booster's stages have their layers, and what is in none. */
static device_parts device_of(const plan_model *model, const plan_choice *choice) {
    double layers = (double)model->hidden * (double)model->hidden * 12 * (double)model->layers;
    double of_stage = layers * stage_layers(model, choice) + ((double)model->numel - layers);
    double own = choice->plugin == PLAN_BOOSTER ? of_stage / choice->tp : (double)model->numel;
    device_parts parts = {.numel = own};
    int zero = stage_of_zero(choice);
    uint64_t bytes = (uint64_t)(own * ELEMENT), sharers = sharers_of(choice);
    parts.param = has_its_stage(choice) ? (uint64_t)(of_stage * ELEMENT) : bytes;
    parts.grad = zero >= 2 ? divided(bytes, sharers) : bytes;
    parts.states = 2 * (zero >= 1 ? divided(bytes, sharers) : bytes);
    bool plain = choice->plugin == CASTOR_PLUGIN_NONE;
    uint64_t some = at_most(BUCKETS * at_least(bucket_bytes, model->largest * ELEMENT), bytes);
    uint64_t laid = (uint64_t)(of_stage * ELEMENT); /* a stage's gradients are summed when all are there */
    if (sharers > 1)
        parts.buckets = plain                            ? bytes
                        : has_its_stage(choice)          ? without(laid, parts.grad) + some
                        : zero >= 2 && is_staged(choice) ? laid
                        : zero >= 2                      ? some
                                                         : 0;
    parts.activations = activations_of(model, choice, false);
    return parts;
}

static uint32_t span_ranks(const plan_cluster *cluster, const plan_choice *choice) {
    return (uint32_t)at_most(plan_ranks_of_node(cluster, choice), choice->tp);
}

/* Sums of gradients, and what owners send after the step. */
static void reckon_sums(const plan_cluster *cluster, const plan_choice *choice, const device_parts *parts,
                        plan_cost *cost) {
    uint32_t n = sharers_of(choice), inside = span_ranks(cluster, choice),
             local = plan_ranks_of_node(cluster, choice);
    bool spans = cluster->nodes > 1 && local < world_of(choice);
    /* The devices of a node share its way to the others. */
    double rate = spans ? cluster->network / at_least(inside, 1) : cluster->link;
    double bytes = parts->numel * ELEMENT, times = sums_of(choice);
    int zero = stage_of_zero(choice);
    double sums =
        collective_seconds(cluster, zero >= 2 ? MESH_REDUCE_SCATTER : MESH_ALL_REDUCE, bytes, n, rate);
    double hidden =
        is_staged(choice) ? 0 : cluster->overlap * cost->seconds[PLAN_TERM_COMPUTE] * 2 / 3 / times;
    cost->seconds[PLAN_TERM_SUMS] = (sums > hidden ? sums - hidden : 0) * times;
    bool sends = zero >= 1 && !has_its_stage(choice); /* what owners have stepped */
    if (sends)
        cost->seconds[PLAN_TERM_SUMS] += collective_seconds(cluster, MESH_ALL_GATHER, bytes, n, rate);
    double published = has_its_stage(choice) ? bytes / n : 0; /* into the host memory that the ranks share */
    cost->sent[PLAN_WAY_LINK] += (uint64_t)published;
    cost->seconds[PLAN_TERM_LINK] += published / cluster->link;
    double part = n ? bytes * (n - 1) / n : 0, ring = (zero >= 2 ? 1 : 2) * part * times + (sends ? part : 0);
    cost->sent[PLAN_WAY_NODE] += (uint64_t)ring;
    if (spans) /* a ring leaves a node once for each of its parts of the model */
        cost->sent[PLAN_WAY_NETWORK] += (uint64_t)(ring * at_least(inside, 1));
}

/* What does not fit on the device goes to the host: states, then gradients, then parameters. */
static void reckon_host(const plan_cluster *cluster, const plan_choice *choice, const device_parts *parts,
                        uint64_t excess, plan_cost *cost) {
    uint32_t ranks = plan_ranks_of_node(cluster, choice);
    uint64_t states = at_most(excess, parts->states), grads = at_most(excess - states, parts->grad);
    uint64_t params = at_most(excess - states - grads, parts->param);
    bool once = stage_of_zero(choice) >= 3; /* parameters on the host: once for all ranks of the node */
    cost->bytes[PLAN_TIER_HOST] += (states + grads) * ranks + params * (once ? 1 : ranks);
    /* What has its states on the host is stepped there: its gradient goes, its parameter comes. */
    double stepped = parts->states ? (double)states / (double)parts->states : 0;
    double owned = (double)parts->states / STATES * stepped, per_core = owned * STEP_BYTES * ranks;
    double carried = 2 * owned * ELEMENT + (double)params * slot_passes * choice->micro / choice->pp;
    cost->sent[PLAN_WAY_LINK] += (uint64_t)carried;
    cost->seconds[PLAN_TERM_LINK] +=
        carried / cluster->link + per_core / (cluster->core_stream * cluster->cores);
    cost->seconds[PLAN_TERM_OPTIMIZER] *= 1 - stepped;
}

/* A sixteenth of the device is on its way at a time (CASTOR_ACTIVATIONS). */
static void reckon_offload(const plan_cluster *cluster, const plan_choice *choice, const device_parts *parts,
                           plan_cost *cost) {
    uint64_t left = at_most(cost->activation_bytes, cluster->device_bytes / 16),
             away = cost->activation_bytes - left;
    double one_way = (double)without(parts->activations, left) * choice->micro / most_alive(choice),
           busy = one_way / cluster->link, hidden = cost->seconds[PLAN_TERM_COMPUTE];
    cost->bytes[PLAN_TIER_HOST] += away * plan_ranks_of_node(cluster, choice);
    cost->activation_bytes = left;
    cost->sent[PLAN_WAY_LINK] += (uint64_t)(2 * one_way);
    cost->seconds[PLAN_TERM_LINK] += busy > hidden ? busy - hidden : 0;
}

static void reckon_on_devices(const plan_model *model, const plan_cluster *cluster, const plan_choice *choice,
                              plan_cost *cost) {
    device_parts parts = device_of(model, choice);
    uint64_t kept = parts.param + parts.grad + parts.states;
    cost->process_bytes = (uint64_t)cluster->context;
    cost->model_bytes = kept + parts.buckets;
    /* What trials save goes to the host where it would not leave a quarter of the device. */
    uint64_t tried = tried_activations(model, choice);
    if (cluster->device_bytes)
        tried =
            at_most(tried, without(cluster->device_bytes, cost->model_bytes + cost->process_bytes) * 3 / 4);
    cost->activation_bytes = at_least(tried, parts.activations);
    cost->bytes[PLAN_TIER_HOST] = model->process_bytes * plan_ranks_of_node(cluster, choice);
    if (has_its_stage(choice)) /* all parameters, for the state dict of any rank */
        cost->bytes[PLAN_TIER_HOST] += (uint64_t)(parts.numel * ELEMENT);
    cost->seconds[PLAN_TERM_COMPUTE] = work_of(model, choice) / world_of(choice);
    cost->seconds[PLAN_TERM_OPTIMIZER] = (double)parts.states / STATES * STEP_BYTES / cluster->device_stream;
    reckon_stages(model, choice, 1, cost);
    reckon_tensor(model, cluster, choice, cluster->link, cost);
    if (sharers_of(choice) > 1)
        reckon_sums(cluster, choice, &parts, cost);
    if (choice->offload)
        reckon_offload(cluster, choice, &parts, cost);
    uint64_t used = cost->model_bytes;
    if (choice->bounded && cluster->device_bytes) {
        uint64_t others = cost->activation_bytes + cost->process_bytes + parts.buckets;
        cost->budget_bytes = without(cluster->device_bytes, others) >> 20 << 20;
        uint64_t excess = without(kept, cost->budget_bytes);
        reckon_host(cluster, choice, &parts, excess, cost);
        used -= excess;
    }
    cost->bytes[PLAN_TIER_DEVICE] = used + cost->activation_bytes + cost->process_bytes;
}

/* ---- both ---- */

static bool is_possible(const plan_model *model, const plan_cluster *cluster, const plan_choice *choice) {
    uint64_t most = (uint64_t)cluster->nodes * (cluster->devices ? cluster->devices : cluster->cores);
    uint64_t world = (uint64_t)choice->tp * choice->pp * choice->dp;
    if (choice->plugin < 0 || choice->plugin >= PLAN_PLUGINS || !choice->tp || !choice->pp || !choice->dp ||
        !choice->micro || world > PLAN_RANKS_MAX || (cluster->devices && world > most) ||
        world % cluster->nodes)
        return false;
    uint32_t copies = choice->tp * choice->pp;
    if (choice->own_batches && choice->micro % copies)
        return false;
    /* Of the Booster's plugin, devices are planned. Of `--plugin hybrid`, models whose layers a node's ranks have together, with stages on
     * one node or as many as fill some. */
    uint32_t here = plan_ranks_of_node(cluster, choice);
    if (copies > 1)
        return plan_plugins[choice->plugin].divides && model->layers &&
               (choice->plugin == PLAN_BOOSTER
                    ? cluster->devices > 0
                    : here % copies == 0 || (copies % here == 0 && here % choice->tp == 0)) &&
               model->layers >= choice->pp && model->heads % choice->tp == 0 &&
               choice->micro <= PLAN_LAYERS_MAX;
    return true;
}

castor_status plan_cost_of(const plan_model *model, const plan_cluster *cluster, const plan_choice *choice,
                           plan_cost *out) {
    *out = (plan_cost){.fits = true};
    if (!is_possible(model, cluster, choice))
        return CASTOR_ERR_ARGUMENT;
    if (cluster->devices)
        reckon_on_devices(model, cluster, choice, out);
    else
        reckon_on_cores(model, cluster, choice, out);
    for (int term = 0; term < PLAN_TERM_COUNT; term++)
        out->step_seconds += out->seconds[term];
    const uint64_t most[PLAN_TIER_COUNT] = {cluster->device_bytes, cluster->host_bytes, 0};
    for (int tier = PLAN_TIER_COUNT; tier-- > 0;)
        if (most[tier] && out->bytes[tier] > most[tier]) {
            out->fits = false;
            out->short_of = (plan_tier)tier;
        }
    return CASTOR_OK;
}
