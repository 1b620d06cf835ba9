/* The node store: the memory that holds one node's chunks, mapped by every rank of the node.
 *
 * Vocabulary
 *   group      the ranks (all on this node) that share a store; `rank` counts within it
 *   control    a small shared block: ranks and what they do, progress of sums, barriers
 *   exchange   for each rank an area that it writes, and that the others read after a barrier
 *   tensor     one registered parameter, with its gradient's sum and its optimizer states
 *   generation of a tensor: number of sums that were completed
 *
 * Invariants
 *   - every rank registers the same tensors in the same order, so ids, owners and offsets agree
 *   - a rank writes its own rank_control and its own progress words only, unless a field says otherwise
 *   - parameter and state chunks are written by the tensor's owner only, between the barriers of a step; gradient
 *     chunks by the ranks in rank order, and by owners between the barriers of a shared operation
 *   - nobody writes a sum before every rank has released the previous one (leases, window.h)
 */
#ifndef CASTOR_STORE_H
#define CASTOR_STORE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/hash.h"
#include "base/status.h"
#include "placement/chunk.h"
#include "placement/placement.h"

#define STORE_RANKS_MAX    128
#define STORE_TENSORS_MAX  262144u
#define STORE_TEXT_MAX     1024
#define STORE_WHAT_MAX     96
#define STORE_WHERE_MAX    96
#define STORE_SAID_MAX     128
#define CONSENSUS_VERDICTS 64

/* What a rank is doing. Other ranks tell by it what the rank that they wait for does, and whether it will come. */
typedef enum store_activity {
    ACTIVITY_SCRIPT,       /* the script's own code */
    ACTIVITY_REGISTRATION, /* building a model wrapper or an optimizer */
    ACTIVITY_BACKWARD,     /* at the end of a backward, waiting for the sums */
    ACTIVITY_STEP,         /* in an optimizer step */
    ACTIVITY_CONSENSUS,    /* in an operation on all gradients (clip, unscale) */
    ACTIVITY_COLLECTIVE,   /* has entered a collective of the script's */
    ACTIVITY_SAVE,         /* waiting for rank 0's file */
    ACTIVITY_DATA,         /* starting an iteration over a DataLoader */
    ACTIVITY_ENDED,        /* has left */
    ACTIVITY_COUNT
} store_activity;
extern const char *const store_activity_names[ACTIVITY_COUNT];

/* What a rank came to a barrier for, and what it says there (wait_meeting). */
typedef struct store_meeting {
    uint64_t bytes, digest;
    char what[STORE_WHAT_MAX];
    char said[STORE_SAID_MAX];
} store_meeting;

typedef struct rank_control {
    _Atomic uint32_t joined;
    int32_t pid;
    uint64_t start_ticks; /* of the process, from /proc: a reused pid is not taken for the rank */
    _Atomic uint32_t activity;
    _Atomic uint32_t activity_changes;
    _Atomic uint32_t arrivals;                /* barriers that this rank has reached */
    _Atomic uint64_t consensus_key;           /* of the operation that it came to last */
    _Atomic uint64_t consensus_abandoned_key; /* of the last one that it did for itself */
    _Atomic uint64_t exchange_bytes[2];
    _Atomic uint64_t private_bytes; /* of its views, at its last step */
    _Atomic uint64_t other_bytes;   /* of its blocks that are no model data, of late; under a budget */
    store_meeting meeting[2];       /* by arrivals % 2: no rank is more than one barrier ahead of another */
    char where[STORE_WHERE_MAX];    /* its line of the script, after the ranks have parted */
    _Atomic uint32_t told;          /* ... at these arrivals */
    _Atomic uint64_t cause;         /* castor_fail */
} rank_control;

typedef struct store_control {
    uint64_t magic;
    int32_t world;
    _Atomic uint32_t event;     /* futex: advances with every change that somebody may wait for */
    _Atomic uint32_t waiters;   /* of `event` */
    _Atomic uint32_t failed;    /* 0, 1: being written, 2: failure and blamed hold the reason */
    int32_t blamed;             /* the rank that failed first; -1: no single one */
    _Atomic uint32_t wanted;    /* id + 1 of the tensor whose leases rank 0 waits for; 0: none */
    _Atomic uint64_t consensus; /* ticket << 32 | number of ranks that came (consensus.h) */
    _Atomic uint64_t consensus_verdict[CONSENSUS_VERDICTS]; /* by ticket */
    char failure[STORE_TEXT_MAX];
    pthread_mutex_t demand_lock; /* demand.h; robust, and the words that it guards: */
    uint64_t demand_clock, demand_bytes;
    rank_control rank[STORE_RANKS_MAX];
} store_control;

/* Progress of one tensor; `world` rank words follow. */
typedef struct tensor_progress {
    _Atomic uint32_t added;    /* blocks that this rank has added, over all generations */
    _Atomic uint32_t released; /* generations whose sum this rank no longer reads */
} tensor_progress;

typedef struct tensor_control {
    _Atomic uint32_t event;   /* futex of this tensor */
    _Atomic uint32_t waiters; /* of `event` */
    _Atomic uint32_t used
        [2]; /* by generation % 2, as one rank may be a generation ahead: generation + 1 when some rank used it */
    _Atomic uint32_t published;   /* number of publications; written by the owner */
    _Atomic uint32_t forgotten;   /* ranks that have forgotten the tensor */
    _Atomic uint32_t leases_back; /* releases of all ranks, over all generations; any rank adds to it */
    _Atomic uint32_t given_back;  /* the generation whose sum's memory was given back; 0: none */
    _Atomic uint32_t carried;     /* the generation whose sum rank 0 went on with; 0: none */
    uint32_t residency[2];        /* by chunk_kind, demand_residency; under demand_lock, as is loaded_at */
    uint64_t loaded_at[2];        /* demand_clock then */
    tensor_progress rank[];
} tensor_control;

typedef enum store_exchange { EXCHANGE_CALL, EXCHANGE_STATES } store_exchange;

struct tensor;
typedef struct store store;

/* What keeps a store's chunks within bounded memory, as who opens the store names it. The store calls it, and knows no more of it. */
typedef struct store_bound {
    castor_status (*start)(store *s);         /* before the first tensor; sets s->bounded */
    castor_status (*tensors_added)(store *s); /* under the store's lock; closes the tensors' chunks */
    uint64_t (*resident_bytes)(const store *s, chunk_kind kind);
    void (*stop)(store *s); /* before the process ends */
} store_bound;

#define STORE_MAGIC 0x31524f5453415343ull
#define STORE_CONTROL_BYTES                                                                                  \
    (1ul << 20) /* the control block; then the ranks' areas, and the tensors' blocks */
#define STORE_EXCHANGE_BYTES (64ul << 20)

struct store {
    int rank, world;
    int control_fd;
    const char *moments_dir; /* as in store_settings */
    store_control *control;
    chunk_table chunks;
    /* Grows under `lock`; entries never move. */
    struct tensor **tensors;
    uint32_t tensor_count, tensor_capacity;
    int owners;                           /* ranks below it own tensors; world on one node */
    int32_t *job_ranks;                   /* by rank, as the job counts it, for messages; NULL: the same */
    int node, node_count;                 /* 0 and 1: nothing is sharded over nodes */
    uint64_t agreed;                      /* store_agreed_add */
    uint64_t owner_load[STORE_RANKS_MAX]; /* bytes of parameters by owner */
    uint64_t *node_load;                  /* ... by owner and node, when there are several */
    pthread_mutex_t lock;
    double timeout_seconds;
    int gradient_return; /* percent of the sums that are returnable */
    uint64_t sum_bytes, sum_returnable_bytes;
    _Atomic bool lends; /* sums that this rank owns may hold its blocks (window_loans_add) */
    bool gradual;       /* the registration that goes on fills ranges when they are used (tensor_register) */
    /* Advances with every barrier and every new view: a snapshot is good for one value. */
    _Atomic uint64_t changes;
    bool detached;         /* in a forked child: the store is not this process's any more */
    void *sums;            /* of the layer that makes them */
    struct demand *demand; /* demand.h; NULL: nothing is away */
    const store_bound *bound;
    void *bounded;         /* of `bound`; NULL: no chunks are placed */
    uint64_t budget_bytes; /* 0: none */
    placement_settings placement;
    /* Until the first tensors say whether an automatic budget is needed (store_budget_decide): of the opening. NULL: decided. */
    char *token, *group;
    const char *offload_dir;
    struct snapshot *snapshot;
    struct store *next; /* list of this process's stores */
};

#define STORE_BUDGET_AUTO UINT64_MAX

typedef struct store_settings {
    const store_bound *bound;     /* used where chunks are placed */
    uint64_t chunk_bytes;         /* 0: chosen for the first tensors that are registered */
    const char *offload_dir;      /* "": the files are in memory, unless chunks are placed */
    uint64_t budget_bytes;        /* 0: none; STORE_BUDGET_AUTO */
    placement_settings placement; /* chunks are placed under a budget, and where a static share is not 0 */
    const char *moments_dir;      /* where each rank leaves what it has recorded; NULL or "": nowhere */
    double timeout_seconds;
} store_settings;

/* Opens the store of a group, together with its other ranks. `group` names it; the same on all of them, as the settings
 * are. */
castor_status store_open(const char *token, const char *group, int rank, int world,
                         const store_settings *settings, store **out);

/* Before the first tensor, on every rank: under an automatic budget there is one from here on, if the model's data would not
 * fit into what rank 0 finds available. Nothing, where that is decided. */
castor_status store_budget_decide(store *s, uint64_t parameter_bytes);
/* The budget of a node for a model whose parameters have so many bytes, when so many are available (UINT64_MAX: not known);
 * 0: none is needed. */
uint64_t store_budget_automatic(uint64_t parameter_bytes, uint64_t available);

/* The group's ranks as the whole job counts them: what messages name. */
castor_status store_job_ranks_set(store *s, const int32_t *ranks);
static inline int store_job_rank(const store *s, int rank) {
    return s->job_ranks ? s->job_ranks[rank] : rank;
}

/* Before the first tensor: each is stepped on one of `node_count` nodes only, of which this is `node`. */
castor_status store_shard(store *s, int node, int node_count);

/* What the ranks of this node have agreed on, all nodes must have: a digest of it goes to the next exchange between them. */
static inline void store_agreed_add(store *s, const void *data, size_t bytes) {
    s->agreed = hash_bytes(s->agreed, data, bytes);
}

/* This rank leaves: the others are told, nothing waits. The mappings stay, because tensors may still use them. */
void store_leave(store *s);
store *store_first(void);

tensor_control *store_tensor_control(const store *s, uint32_t id);

/* Bytes that the chunks of a kind hold in memory or on disk, node-wide. */
uint64_t store_resident_bytes(const store *s, chunk_kind kind);

#endif
