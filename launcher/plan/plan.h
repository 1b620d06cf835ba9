/* `castor plan`: what each way to train a model on a machine needs and how long its step takes, before it runs.
 *
 * Vocabulary
 *   model     what is known of a training step: elements, activations, work. By arithmetic from LAYERSxHIDDENxHEADSxVOCAB, or
 *             from the log directory of a run (model.c)
 *   cluster   nodes, their devices or cores, memory, and how fast bytes go between them
 *   choice    one way to train: plugin, ranks and their division, micro-batches, budget, activations
 *   cost      of a choice: bytes of each tier, bytes sent, seconds of a step by parts (cost.c)
 *   plan      the best choice of a plugin and a division, with its cost; search.c puts plans in order
 *
 * What lies where follows docs/nodes.md and docs/device-ranks.md. The costs of collectives, the division into stages, the schedules
 * of pipelines and the size of chunks are the library's (interpose/parallel, interpose/placement), and budgets are replayed through
 * its chunk manager (paging.c, replay.c). Bytes are those of float parameters and gradients and of two states. */
#ifndef CASTOR_LAUNCHER_PLAN_H
#define CASTOR_LAUNCHER_PLAN_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include "base/status.h"
#include "job/options.h"

int plan_main(int argc, char **argv); /* argv[0] is "plan" */

enum { PLAN_NODES_MAX = 8192, PLAN_RANKS_MAX = 65536, PLAN_LAYERS_MAX = 4096, PLAN_COMMAND_MAX = 2048 };
#define PLAN_NUMEL_MAX (1ull << 46)

typedef struct plan_cluster {
    uint32_t nodes;
    uint32_t devices; /* of a node; 0: ranks compute on cores */
    uint32_t cores;   /* of a node */
    uint32_t threads; /* of each rank on cores; 0: the cores over the ranks of a node */
    uint64_t device_bytes, host_bytes;
#define ASSUMED(id, key, value, doc) double id;
#include "assumed.def"
} plan_cluster;

/* ---- model.c ---- */

typedef struct plan_model {
    bool recorded;
    uint64_t layers, hidden, heads, vocabulary, context; /* 0: not known, as of a recorded step */
    uint64_t numel;                                      /* of all parameters */
    uint64_t largest;                                    /* elements of the largest parameter; 0: not known */
    uint64_t *tensors;                                   /* elements of each parameter; NULL: not known */
    uint64_t tensor_count;
    uint64_t chunk_bytes;      /* of the node's store, without a budget; 0: not known */
    uint64_t tokens;           /* of a step, of all ranks; 0: not known */
    uint64_t activation_bytes; /* of the whole batch, at their peak */
    uint64_t logits_bytes;     /* the part of these that the end of the model has; 0: not known */
    uint64_t loan_bytes; /* of a node's blocks, that lay on sums of gradients meanwhile; recorded alone */
    double head_share,
        attention_share; /* of the work: what the end of the model does, and attention without its layers */
    uint64_t process_bytes; /* of a rank, beside model data and activations */

    /* Of a step, in seconds of one core, or of one device. */
    double compute_seconds;   /* forward and backward of the whole batch */
    double optimizer_seconds; /* of all parameters; recorded alone */
    /* Of a recorded step. */
    double step_seconds;
    uint32_t ranks;
    bool on_devices;
    char command[PLAN_COMMAND_MAX]; /* of the recorded run; "": none */
} plan_model;

/* Elements that a layer keeps of a token for its backward pass: inputs of norms (2) and of products after them (2), queries, keys and
 * values (3), what attention gives (1); inside of its two inner products, before and after the function (8). The latter are a rank's
 * part where ranks have layers together: queries, keys and values of one product are put together before attention. Of the logits when
 * their backward pass begins: the logarithm of their softmax, which was kept, its gradient, and theirs. */
enum { PLAN_LAYER_WHOLE = 8, PLAN_LAYER_INSIDE = 8, PLAN_LOGITS_KEPT = 3 };

/* "12x768x12x50257", with "x1024" for the length of a sequence. False: the reason is in `message`. */
bool plan_model_parse(const char *text, plan_model *out, char *message, size_t size);
/* From the log directory of a run that has made two steps. False: the reason was logged. */
bool plan_model_read(const char *directory, const plan_cluster *cluster, plan_model *out);
/* The tokens of a step, 0: not known. Of a model by arithmetic they decide activations and work. False: these have no room in 64
 * bits. */
bool plan_model_settle(plan_model *model, const plan_cluster *cluster, uint64_t tokens);
void plan_model_free(plan_model *model);

/* ---- cost.c ---- */

typedef enum plan_tier { PLAN_TIER_DEVICE, PLAN_TIER_HOST, PLAN_TIER_DISK, PLAN_TIER_COUNT } plan_tier;
typedef enum plan_way {
    PLAN_WAY_LINK,
    PLAN_WAY_NODE,
    PLAN_WAY_NETWORK,
    PLAN_WAY_DISK,
    PLAN_WAY_COUNT
} plan_way;
typedef enum plan_term {
#define TERM(id, key, reason) PLAN_TERM_##id,
#include "term.def"
    PLAN_TERM_COUNT
} plan_term;

enum { PLAN_BOOSTER = CASTOR_PLUGIN_COUNT, PLAN_PLUGINS, PLAN_ZERO_STAGES = 3 };
/* Gradients that wait in a rank for their turn in the node's sums (REDUCE_QUEUE_BYTES). */
#define PLAN_QUEUE_BYTES (UINT64_C(32) << 20)

typedef struct plan_plugin {
    const char *name;
    int shards; /* as in plugins.def */
    bool engine;
    bool divides; /* layers (tp) and their chain (pp) */
    bool runs;    /* a plan of it has a command */
} plan_plugin;
extern const plan_plugin plan_plugins[PLAN_PLUGINS];

typedef struct plan_choice {
    int plugin;
    uint32_t tp, pp, dp;
    uint32_t micro; /* micro-batches of a step: of a pipeline, else steps of the script (CASTOR_ACCUMULATE) */
    int zero;       /* of those that divide models: the stage of ZeRO */
    /* Of --plugin hybrid, where a launcher of PyTorch's starts the ranks: each has a batch of its own, and those of the ranks that have
     * a model together are micro-batches of it. There may be some times as many: in stages they are parts of these batches, else the
     * script accumulates. */
    bool own_batches;
    bool bounded; /* there is a budget; cost.budget_bytes */
    bool offload; /* activations go to the host and come back */
    bool tried;   /* by CASTOR_AUDIT: every rank computes the first calls of a script of one process whole */
} plan_choice;

typedef struct plan_cost {
    uint64_t bytes[PLAN_TIER_COUNT]; /* of a device; of a node's memory and disk */
    /* Parts of a node's memory; where there are devices, of a device's. */
    uint64_t model_bytes, activation_bytes, process_bytes;
    /* In a step: over a device's link to its host, to other devices of its node, by a node to others, to and from a node's disk. */
    uint64_t sent[PLAN_WAY_COUNT];
    uint64_t budget_bytes; /* of a node, or of a device; 0: none */
    uint64_t chunk_bytes;  /* of the node's store; 0: not known, or no store */
    double seconds[PLAN_TERM_COUNT], step_seconds;
    bool fits;
    plan_tier short_of; /* where it does not fit */
} plan_cost;

/* Of a core, for a rank's addition of all its gradients to the node's sums. */
double plan_sum_seconds(const plan_model *model, const plan_cluster *cluster);
/* The ranks of a node that a choice uses. */
uint32_t plan_ranks_of_node(const plan_cluster *cluster, const plan_choice *choice);
/* Castor makes the ranks, of a script of one process. */
bool plan_is_split(const plan_model *model, const plan_cluster *cluster, const plan_choice *choice);
/* CASTOR_ERR_ARGUMENT: the choice is none for this model and cluster. */
castor_status plan_cost_of(const plan_model *model, const plan_cluster *cluster, const plan_choice *choice,
                           plan_cost *out);

/* ---- search.c ---- */

enum { PLAN_REASON_MAX = 160 };

typedef struct plan {
    plan_choice choice;
    plan_cost cost;
    char reason[PLAN_REASON_MAX]; /* why it is not the first; "": it is */
} plan;

typedef struct plans {
    plan *rows; /* those that fit first, by the time of a step */
    size_t count, capacity;
    uint64_t tried; /* choices whose cost was found */
} plans;

/* False: memory is out. */
bool plans_find(const plan_model *model, const plan_cluster *cluster, plans *out);
void plans_free(plans *plans);
/* The first one, if it fits and castor runs it; else NULL. */
const plan *plans_best(const plans *plans);

/* ---- output.c ---- */

/* Where a launcher's command has its number of ranks for a node; NULL: it is no such command. */
const char *plan_ranks_place(const char *command);
/* The command line that makes the plan, for a shell; "": castor run does not take it yet. */
void plan_command_line(const plan_model *model, const plan_cluster *cluster, const plan *plan, char *out,
                       size_t size);
void plan_write_text(const plan_model *model, const plan_cluster *cluster, const plans *plans, FILE *out);
void plan_write_html(const plan_model *model, const plan_cluster *cluster, const plans *plans, FILE *out);
void plan_write_json(const plan_model *model, const plan_cluster *cluster, const plans *plans, FILE *out);

/* ---- record.c ---- */

/* Runs the command under `castor run` until it has made some steps, then ends it. Its log directory comes to `directory`. An exit
 * status to end with; 0: it ran. */
int plan_record(char *const *command, char *directory, size_t size);

#endif
