/* castor.h: the functions that libcastor.so exports.
 *
 * The Python agent calls them over ctypes; scripts and programs may, too. Sizes are in bytes, times in seconds unless
 * a name says otherwise; elements are counted in `numel`. A function that returns castor_status gives CASTOR_OK (0) or
 * an error, whose text castor_error() holds for the calling thread until its next failing call. Ranks count within
 * the group of the store. Everything is safe to call from any thread unless it says "on every rank": such a call waits
 * for the same call on the other ranks, and ends with an error within seconds when one of them is gone.
 *
 * A forked child is no rank: it sees its parent's tensors as they were at the fork, and calls that would change the store
 * or wait for other ranks give it CASTOR_ERR_UNSUPPORTED and do nothing.
 */
#ifndef CASTOR_H
#define CASTOR_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CASTOR_API __attribute__((visibility("default")))

typedef struct store castor_store;     /* the memory of one group of ranks on this node */
typedef struct tensor castor_tensor;   /* one registered parameter: its place, its gradient's sum */
typedef struct node_group castor_node; /* the memory of one process group's collectives */
typedef struct window castor_window;   /* a lease on a sum: what p.grad shows */

/* ---- the process -------------------------------------------------------------------------------------------- */

/* Wakes the library: hooks are resolved, the arena and the trace start. Called by the agent at the end of
 * `import torch`. Errors: a bad option (CASTOR_ERR_ARGUMENT). */
CASTOR_API int castor_attach(void);
/* The text of this thread's last error, "" before any. */
CASTOR_API const char *castor_error(void);
/* The value of an option ("CASTOR_CHUNK_SIZE") as text; NULL for an unknown name. Valid until this thread's next call. */
CASTOR_API const char *castor_option(const char *name);
/* 1 when the plugin adopts parameters, 0 when it only observes. */
CASTOR_API int castor_plugin_engine(void);
/* What one node only keeps, of several: 0 nothing, 1 optimizer states, 2 gradients too, 3 parameters too. */
CASTOR_API int castor_plugin_shards(void);
/* An error when the plugin cannot work with this version of PyTorch ("2.4.1+cu121"). */
CASTOR_API int castor_torch_check(const char *version);
/* Writes a log line: 0 error, 1 warning, 2 information, 3 debug. */
CASTOR_API void castor_log(int level, const char *text);
/* 1: a process of this job has said this text where log lines go; 0: the caller is the first, and is to say it. */
CASTOR_API int castor_said(const char *text);
/* Writes a text of several lines, as it is, to where log lines go. */
CASTOR_API void castor_say(const char *text);
/* The rank that logs and trace name this process by. */
CASTOR_API void castor_rank_set(int rank);
/* Row `index` of the table of intercepted functions: its layer, its name, and whether the real function was found in this
 * process: 1; 0: no; -1: no, and it need not be, since only other versions of PyTorch have it by that name. 0 beyond the
 * last row, else 1. */
CASTOR_API int castor_hook_get(uint32_t index, const char **layer, const char **name, int *found);
/* This process trains plainly although a plugin was asked for: logged, and noted for the report. */
CASTOR_API void castor_passthrough(const char *reason);
/* The job cannot go on, for this reason: said once, whichever of its processes comes first. `castor run` adds nothing to it. The
 * caller ends its process. */
CASTOR_API void castor_refuse(const char *reason);

/* ---- files (docs/files.md) */

/* From now on, what this process changes in files goes to `folder` (absolute; made where it is not there), which it reads back
 * under the files' own names: for a forked child that must leave no trace, and that leaves by _exit. Descriptors that are open
 * for writing write to nothing (pipes, sockets, terminals, standard output and error: /dev/null) or to private files of the
 * same size, at the same offset; those for reading on files and folders are opened anew, so that the parent's offset stays
 * where it is; shared mappings of named files become private ones. Castor's own files, memfds and what lies below /dev,
 * /proc and /sys stay as they are. Who calls removes the folder. Works without `--nproc`, too.
 * CASTOR_ERR_UNSUPPORTED: a file of more than 64 MiB is open for reading and writing; nothing was changed.
 * CASTOR_ERR_SYSTEM: the folder has no room, or cannot be made; the process must end then. */
CASTOR_API int castor_files_divert(const char *folder);
/* Under `--nproc`, on a rank other than 0: the file which rank 0 has written for all, and does not write to before this
 * returns, is this rank's own at `path` from now on. `from`: the file's actual name, absolute, when rank 0 has written it under
 * another one; NULL: at `path`. Nothing on rank 0. CASTOR_ERR_SYSTEM: no room, or no such file. */
CASTOR_API int castor_files_adopt(const char *path, const char *from);

/* The process group that this thread makes next: its name, the same on all of its ranks, and their global ranks
 * (count 0: all). NULL: none any more. `castor top` and the stall watch find the ranks of a collective by it. */
CASTOR_API void castor_group_announce(const char *name, const int32_t *ranks, size_t count);
/* `tell` appends the Python stacks of this process to the file at `path`. It is called on a thread of its own, when
 * `castor run` finds that other ranks wait for this one. NULL: nobody can tell any more. */
CASTOR_API void castor_stack_teller_set(void (*tell)(const char *path));

/* gloo's collectives through the memory of the node. The contexts that this thread makes are collected between
 * castor_contexts_watch and castor_contexts_unwatch, and counted by castor_contexts_count. */
CASTOR_API void castor_contexts_watch(void);
CASTOR_API uint32_t castor_contexts_count(void);
CASTOR_API void castor_contexts_unwatch(void);
/* On every rank of a process group: the memory through which they move data. `name` is the same on all ranks and no other
 * group's. Nothing goes through it before castor_node_bind, on which all ranks must have agreed. */
CASTOR_API int castor_node_open(const char *name, int rank, int world, double timeout_seconds,
                                castor_node **out);
/* The collected contexts use it from now on, and end it. */
CASTOR_API int castor_node_bind(castor_node *node);
/* The same for a group whose ranks are on several nodes, place[i] that of rank i from 0 on: `node` was opened by those of
 * this rank's node, NULL if it is alone there. The first rank of each node has made a group with the others between
 * castor_leaders_watch and castor_leaders_unwatch, tested it as below, and keeps it as long as the bound one. */
CASTOR_API int castor_node_bind_across(castor_node *node, int rank, const int32_t *place, int world,
                                       const void *leaders);
/* 1: a group is bound with these `leaders`, whatever their address stands for. */
CASTOR_API int castor_across_bound(const void *leaders);
CASTOR_API void castor_leaders_watch(void);
CASTOR_API void castor_leaders_unwatch(void);
/* It is not bound after all. */
CASTOR_API void castor_node_leave(castor_node *node);
/* Calls of gloo's collectives by this process that went through the node's memory. */
CASTOR_API uint64_t castor_node_calls(void);
/* The test of gloo's layouts, with a process group of one rank that this thread has made while it watches: the next call
 * (a gloo_data_call) is to find these floats (NULL: any), this timeout, and a context of this rank and size. */
CASTOR_API void castor_layout_begin(void);
CASTOR_API void castor_layout_expect(int call, const void *input, const void *output, size_t numel,
                                     int64_t timeout_ms, int rank, int size);
/* The next call throws a std::runtime_error with this text. */
CASTOR_API void castor_layout_throw(const char *text);
/* 1: every call found what was expected. */
CASTOR_API int castor_layout_end(void);
/* 1: so did what leaders need, at an allreduce of the last test. */
CASTOR_API int castor_layout_leads(void);

/* PyTorch's CPU blocks in Castor's arena, in bytes: handed out, the most of that, freed but still resident, and those
 * of the handed out over which the store is mapped. Zeros when the arena is off. */
typedef struct castor_arena_info {
    uint64_t live_bytes, live_peak_bytes, dirty_bytes, adopted_bytes;
} castor_arena_info;
/* Bytes of the block of PyTorch's CPU allocator that begins at the address; 0: none of the arena's does. */
CASTOR_API uint64_t castor_arena_block(const void *address);
CASTOR_API void castor_arena_get(castor_arena_info *out);

/* ---- events, for the trace ---------------------------------------------------------------------------------- */

CASTOR_API uint64_t castor_now_ns(void);
/* An optimizer step at its outermost depth; `optimizer` numbers the optimizers of the process, from 0;
 * `mode`: 0 plain, 1 owner, 2 replicated, 3 local. */
CASTOR_API void castor_event_step(uint64_t begin_ns, uint64_t end_ns, uint32_t optimizer, uint32_t mode);
CASTOR_API void castor_event_backward(uint64_t begin_ns, uint64_t end_ns, int synchronized);
/* Bytes of model data that this rank holds outside the store. */
CASTOR_API void castor_event_model_data(uint64_t param_bytes, uint64_t grad_bytes, uint64_t optim_bytes);
/* Of these, what lies in the memory of devices, and what PyTorch holds there besides. */
CASTOR_API void castor_event_device_data(uint64_t param_bytes, uint64_t grad_bytes, uint64_t optim_bytes,
                                         uint64_t other_bytes);

/* ---- the store ---------------------------------------------------------------------------------------------- */

/* Opens the store of a group, on every rank. `group` names the group, the same on all of its ranks and different from
 * other groups of the job. `rank` < `world` <= 128. */
CASTOR_API int castor_store_open(const char *group, int rank, int world, castor_store **out);
/* Whether some of the data of a model whose parameters have so many bytes may lie on disk alone: CASTOR_MEMORY_BUDGET, as it
 * stands or (auto) by what memory is free now, or a static share. */
CASTOR_API int castor_places(uint64_t parameter_bytes);
/* The same for the ranks of one node of several: `rank` and `world` count the node's. `token` (at most 63 characters, secret;
 * NULL: the job's) is the same on all of them, and `owners` on all nodes: ranks below it own tensors. */
CASTOR_API int castor_store_open_node(const char *group, const char *token, int rank, int world, int owners,
                                      castor_store **out);
/* This rank leaves (at exit); the others stop waiting for it. */
CASTOR_API void castor_store_leave(castor_store *store);
CASTOR_API int castor_barrier(castor_store *store, const char *what);
/* On every rank: rank 0's `bytes` (at most 16 MiB) to all. */
CASTOR_API int castor_broadcast(castor_store *store, void *data, size_t bytes, const char *what);
/* On every rank: `bytes` (the same on all, at most 16 MiB) of each, in rank order; `out` holds world * bytes. */
CASTOR_API int castor_gather(castor_store *store, const void *data, size_t bytes, void *out,
                             const char *what);
/* On every rank: `count` values that must be equal; labels[i] (or NULL for all) names value i. A barrier as well; another barrier
 * must follow before the next castor_agree. */
CASTOR_API int castor_agree(castor_store *store, const char *what, const double *values,
                            const char *const *labels, uint32_t count);
/* Says where this rank is (store_place), for the others' messages and waits. */
CASTOR_API void castor_place_set(castor_store *store, int place);
/* Tells every rank that this one cannot go on: their waits end with castor_error()'s text. The first to say so is heard. `cause` is
 * the same number for what is the same cause on another rank. */
CASTOR_API void castor_fail(castor_store *store, const char *text, uint64_t cause);
/* Why the group cannot go on, and the rank that it began with, -1 when that is none alone; -2: it can. */
CASTOR_API int castor_failure_get(castor_store *store, char *text, size_t size);
/* The cause that this rank gave to castor_fail; 0: it gave none. */
CASTOR_API uint64_t castor_failure_cause(const castor_store *store, int rank);
/* `tell` writes the line of the script that the calling thread is in, less than `size` bytes, for the error of ranks that have come
 * to different meetings. NULL: nobody can tell any more. */
CASTOR_API void castor_place_teller_set(void (*tell)(char *out, size_t size));
/* Waits until the process of that rank has ended, when it is another one: who looks at exit statuses finds its first. */
CASTOR_API void castor_blamed_wait(castor_store *store, double seconds);
/* The interpreter's PyGILState_Ensure, PyGILState_Release, PyErr_CheckSignals and PyErr_Fetch. With them a wait on the main
 * thread runs the handlers of signals; when one raises an exception (Ctrl-C) the call ends with CASTOR_ERR_INTERRUPTED, and
 * castor_raised_take gives the exception's three parts. */
CASTOR_API void castor_signals_set(int (*ensure)(void), void (*release)(int), int (*check)(void),
                                   void (*fetch)(void **, void **, void **));
CASTOR_API void castor_raised_take(void **out);
CASTOR_API int castor_store_check(castor_store *store);

/* ---- parameters --------------------------------------------------------------------------------------------- */

#define CASTOR_WHOLE     1 /* its storage holds exactly these elements */
#define CASTOR_FLOAT_SUM 2 /* its gradients, as they are added, and their sum are float32; on one node only */
typedef struct castor_description {
    void *address;   /* of the parameter's first element */
    uint64_t numel;  /* dense, in any order of dimensions */
    int32_t dtype;   /* 0 float32, 1 float64, 2 float16, 3 bfloat16 */
    int32_t flags;   /* CASTOR_WHOLE, CASTOR_FLOAT_SUM */
    uint64_t layout; /* one number for dtype, shape and strides, the same on every rank */
} castor_description;

typedef struct castor_tensor_info {
    uint32_t id;
    int32_t owner;  /* rank */
    int32_t shared; /* 1: the parameter's bytes are the store's; 0: they stay this rank's own */
    int32_t dtype;
    int32_t node;       /* whose owner steps it, of several nodes that shard; -1: each node's owner does */
    int32_t single_sum; /* 1: that node alone keeps the sum between backward passes, */
    int32_t single_parameter; /* and the parameter: the others' bytes come when they are touched */
    uint64_t bytes;
    void *home;        /* the parameter's address, when shared */
    void *param_alias; /* the same bytes as the owner writes them, when shared */
    void *sum;         /* the gradient's sum as the owners write it */
} castor_tensor_info;

/* On every rank: registers `count` parameters; rank 0's values win. out[i] belongs to descriptions[i]. */
CASTOR_API int castor_register(castor_store *store, const castor_description *descriptions, uint32_t count,
                               castor_tensor **out);
CASTOR_API void castor_tensor_get(const castor_tensor *tensor, castor_tensor_info *out);
/* The script dropped the parameter. */
CASTOR_API void castor_tensor_forget(castor_tensor *tensor);
/* Back to memory of this rank's own, with the values it sees now. */
CASTOR_API int castor_tensor_release(castor_tensor *tensor);
/* The script put another block in the parameter's place and may still hold the old one: that keeps its values, whatever
 * is published from now on. */
CASTOR_API int castor_tensor_keep_home(castor_tensor *tensor);

/* Where the script has a parameter now (interpose/store/home.h says what follows from it). */
enum { CASTOR_HOME_WHOLE = 1, CASTOR_HOME_STATES_AWAY = 2, CASTOR_HOME_STATES_REACHED = 4 };
enum { CASTOR_HOME_STAYS, CASTOR_HOME_COMES, CASTOR_HOME_LEAVES };
typedef struct castor_home {
    void *address;   /* of the first element */
    uint64_t layout; /* as in castor_description */
    uint64_t bytes;  /* to the end of the last element */
    uint64_t states; /* a digest of its optimizer states */
    int32_t
        flags; /* CASTOR_HOME_WHOLE: as in castor_description; a state is not where the store has it; something else
                      * can reach it there */
    int32_t unused;
} castor_home;
/* away[i]: parameter i is not where it was when the ranks last agreed. Returns how many are not. */
CASTOR_API uint32_t castor_homes_look(castor_tensor *const *tensors, void *const *addresses,
                                      const uint64_t *layouts, uint32_t count, uint8_t *away);
/* On every rank: verdicts[i] is CASTOR_HOME_STAYS; _COMES: it has a new home with the values that all ranks have there;
 * _LEAVES: from now on it is this rank's own memory. `digest`: of what was agreed. */
CASTOR_API int castor_homes_settle(castor_store *store, castor_tensor *const *tensors,
                                   const castor_home *homes, uint32_t count, uint8_t *verdicts,
                                   uint64_t *digest);
/* Of `bytes` bytes. */
CASTOR_API uint64_t castor_digest(const void *data, uint64_t bytes);

/* ---- the pool: parameters before they are registered --------------------------------------------------------- */

/* From now on this process looks for the other processes of the job on this node, and has `sweep(NULL)` called by
 * `schedule(sweep, NULL)` (Py_AddPendingCall) whenever it has come to hold more memory of its own. The sweep decides which
 * blocks are parameters, and that nobody is writing them. Until castor_pool_stop. */
CASTOR_API int castor_pool_start(int (*schedule)(int (*)(void *), void *), int (*sweep)(void *));
CASTOR_API void castor_pool_stop(void);
/* 1: no collective of this process is on its way, that could write to a parameter. */
CASTOR_API int castor_pool_is_safe(void);
/* What the sweep that was asked for does: the contents of those of `blocks` (first bytes of storages) that PyTorch got from
 * Castor's arena are kept once for all processes that have the same, at the same addresses; nothing that can be seen
 * changes. The caller says that no thread writes to them meanwhile. Then waits a while, if this process is far ahead of the
 * others. Returns the bytes that are no longer this process's own. `blocks` NULL: it could not be done now. */
CASTOR_API uint64_t castor_pool_sweep(void *const *blocks, uint32_t count);
/* Bytes that the pool holds now; and of what processes have swept so far, what others had brought before, and what was new.
 * */
CASTOR_API void castor_pool_get(uint64_t *held, uint64_t *found, uint64_t *made);

/* ---- gradients ---------------------------------------------------------------------------------------------- */

#define CASTOR_GRADIENT_USED 1 /* the script used the parameter */
#define CASTOR_GRADIENT_CARRY                                                                                \
    2                          /* the sum goes on from the last one; an error when the ranks differ in this */
#define CASTOR_GRADIENT_KEEP 4 /* the next sum may go on from this one: its memory is not given back */
/* Adds source * scale into the sum, in the background; `source` NULL adds nothing but takes this rank's turn. It must
 * not change before castor_gradients_done() reaches *ticket. `flags`: CASTOR_GRADIENT_. */
CASTOR_API int castor_gradient_add(castor_tensor *tensor, const void *source, double scale, int flags,
                                   uint64_t *ticket);
CASTOR_API uint64_t castor_gradients_done(castor_store *store);
/* On every rank: waits for the sums. used[i]: some rank used parameter i. */
CASTOR_API int castor_gradients_finish(castor_store *store, castor_tensor *const *tensors, uint32_t count,
                                       uint8_t *used);
/* A view of the sum, for p.grad; it keeps its values until it is returned. Shared parameters only. */
CASTOR_API int castor_window_take(castor_tensor *tensor, castor_window **out, void **address);
CASTOR_API void castor_window_return(castor_window *window);
/* The window shows the newest sum again; what this rank wrote is dropped. */
CASTOR_API int castor_window_refresh(castor_window *window);
/* The window's elements become zero, at no cost. */
CASTOR_API int castor_window_zero(castor_window *window);
/* Bytes of the window that are not the newest sum's: 0 when it shows the sum as it is. */
CASTOR_API uint64_t castor_window_edited(castor_window *window);
/* This rank's next gradient is ready: live windows become its own pages. */
CASTOR_API int castor_windows_detach(castor_tensor *tensor);
/* The same where the sum goes on: `window` (may be NULL) is not copied and shows the sum again after
 * castor_window_refresh; other live windows become this rank's own pages. */
CASTOR_API int castor_window_carry(castor_tensor *tensor, castor_window *window);
/* This rank copied the sum and needs it no more. */
CASTOR_API void castor_sum_release(castor_tensor *tensor);

/* ---- several nodes ------------------------------------------------------------------------------------------ */

/* The same for processes that can share a store, and for no others. Never 0. */
CASTOR_API uint64_t castor_node_identity(void);

/* Where a rank stands among nodes. Nodes are numbered by their first rank. A lane is the ranks of one local rank, one on
 * each node; `lanes` is the number of ranks of the smallest node. */
typedef struct castor_nodes {
    int32_t node, node_count;
    int32_t local_rank, local_world;
    int32_t lanes;
} castor_nodes;
/* `identities[r]`: castor_node_identity() of rank r. `members` takes this node's ranks, `lane` those of this rank's lane (when
 * local_rank < lanes), in order; room for `world` each. */
CASTOR_API int castor_nodes_find(const uint64_t *identities, int world, int rank, castor_nodes *out,
                                 int32_t *members, int32_t *lane);
/* The ranks that differ from `rank` along an axis (0 data, 1 pipeline, 2 tensor) of a mesh data x pipeline x tensor, tensor
 * positions side by side; room for `world`. */
CASTOR_API int castor_mesh_ranks(int world, int tensor, int pipeline, int rank, int axis, int32_t *ranks,
                                 int32_t *count);

typedef struct castor_range {
    void *address;
    uint64_t numel;
    int32_t dtype; /* as in castor_description */
} castor_range;
/* Where the sums (`sums` 1; after castor_gradients_finish) or the shared parameters (0) lie of what this rank owns and is
 * wanted; room for `count`. `merge` 1: as few ranges as possible, the same on every node when the same parameters are
 * shared there; 0: one for each, in the order given. */
CASTOR_API int castor_node_ranges(int sums, castor_tensor *const *tensors, uint32_t count,
                                  const uint8_t *wanted, int merge, castor_range *out, uint32_t *ranges);
/* How many of the tensors, from the first, have all parts of this node's ranks in the running sum: their owners may exchange
 * them before castor_gradients_finish. */
CASTOR_API uint32_t castor_sums_complete(castor_tensor *const *tensors, uint32_t count);
/* On every rank, after that: used[i], set by the owner of parameter i, comes to all of the node. */
CASTOR_API int castor_sums_settle(castor_store *store, castor_tensor *const *tensors, uint32_t count,
                                  uint8_t *used);
/* The group's ranks as the whole job counts them (`world` of them): errors name these. */
CASTOR_API int castor_store_ranks_set(castor_store *store, const int32_t *ranks);
/* After castor_store_open_node: what the plugin shards (castor_plugin_shards) is shared out over `node_count` nodes. */
CASTOR_API int castor_store_shard(castor_store *store, int node, int node_count);
/* Other nodes may read this node's optimizer states from here on: at `address` (numeric) and *port, with the token. */
CASTOR_API int castor_serve(castor_store *store, const char *token, const char *address, int *port);
/* Reads optimizer states of another node. `offsets` and `bytes`: places as the owner's castor_state_place gave them. Error: it
 * cannot be reached, or says nothing for CASTOR_TIMEOUT. */
CASTOR_API int castor_node_read(const char *address, int port, const char *token, const uint64_t *offsets,
                                const uint64_t *bytes, void *const *out, uint32_t count);
/* Whether castor_demand can be called here; else the error says what the kernel asks for. */
CASTOR_API int castor_demand_probe(void);
/* Before the first castor_register, after castor_store_shard and castor_serve of all nodes: one node alone keeps each larger
 * sum between backward passes (`kinds` 1), and each larger parameter (2). What another node keeps comes when something
 * touches it. `addresses`, `ports` and `tokens`: of each node's castor_serve. */
CASTOR_API int castor_demand(castor_store *store, int kinds, const char *const *addresses, const int *ports,
                             const char *const *tokens);
/* This rank's part of what other nodes keep is dropped here, of those tensors that it owns: nobody needs the bytes that are
 * there, or they are not the keeper's any more. `sums`: of the sums, else of the parameters. */
CASTOR_API int castor_demand_drop(int sums, castor_tensor *const *tensors, uint32_t count);
/* out[i], of as many as there are tensors (at most `room`; the number is returned): no rank of this node holds tensor i any
 * more, which one node only keeps. Where that is so on all nodes, castor_demand_sweep gives back what this rank owns of it. */
CASTOR_API uint32_t castor_demand_forgotten(castor_store *store, uint8_t *out, uint32_t room);
CASTOR_API void castor_demand_sweep(castor_store *store, const uint8_t *gone, uint32_t count);
/* This rank reads nothing of other nodes any more. */
CASTOR_API void castor_demand_leave(castor_store *store);
/* On a rank that serves, after that: until the `readers` ranks of other nodes, of all stores, that called castor_demand have
 * left. Error: interrupted by a signal; the ranks of `store` cannot go on, and so do not come to their ends. */
CASTOR_API int castor_serve_wait(castor_store *store, int readers);
/* Bytes that this rank has handed to other nodes. */
CASTOR_API void castor_node_bytes_add(uint64_t bytes);

/* ---- operations that owners do for all ---------------------------------------------------------------------- */

/* On every rank, but a rank that comes alone is let go: *committed is 1 on all ranks when all came with the same key and
 * `able`, 0 on each otherwise. */
CASTOR_API int castor_together(castor_store *store, uint64_t key, int able, int *committed);

/* ---- publication -------------------------------------------------------------------------------------------- */

/* On every rank: the begin of a step; values[] as in castor_agree. Nobody reads the old bytes for itself any more. */
CASTOR_API int castor_step_begin(castor_store *store, const double *values, const char *const *labels,
                                 uint32_t count);
/* What this rank wrote into its views of the tensors that it owns goes to the store. Between step_begin and
 * publish_end. */
CASTOR_API void castor_publish_push(castor_tensor *const *tensors, uint32_t count);
/* The owner wrote param_alias. */
CASTOR_API void castor_publish_mark(castor_tensor *tensor);
/* On every rank: the end of a step. changed[i]: parameter i was published. */
CASTOR_API int castor_publish_end(castor_store *store, castor_tensor *const *tensors, uint32_t count,
                                  uint8_t *changed);
/* On every rank, after all changed the parameters alike: the owners' bytes go to the store, equal pages are shared
 * again. */
CASTOR_API int castor_publish_deduplicate(castor_store *store, castor_tensor *const *tensors, uint32_t count,
                                          const char *what);

/* ---- optimizer states --------------------------------------------------------------------------------------- */

/* A place for a state of a parameter that this rank owns; *alias is where it writes. States of a page and more begin on
 * one. The memory goes back when every rank has forgotten the parameter: others may read it until then. */
CASTOR_API int castor_state_place(castor_tensor *tensor, uint64_t bytes, uint64_t *offset, void **alias);
/* A private view of a state that some rank placed. It keeps what it shows when the parameter is forgotten. */
CASTOR_API int castor_state_view(castor_tensor *tensor, uint64_t offset, uint64_t bytes, void **out);
CASTOR_API void castor_state_unview(castor_store *store, void *view, uint64_t bytes);
/* The owner's edits of its own views go to the aliases. Arrays of `count`. */
CASTOR_API int castor_views_push(void *const *views, void *const *aliases, const uint64_t *bytes,
                                 uint32_t count);
/* A view shows from here on what it shows now. */
CASTOR_API int castor_view_keep(void *view, uint64_t bytes);
/* Edits of views are dropped. Both fail where the kernel keeps them. */
CASTOR_API int castor_views_drop(void *const *views, const uint64_t *bytes, uint32_t count);
CASTOR_API void castor_copy_many(void *const *to, const void *const *from, const uint64_t *bytes,
                                 uint32_t count);
/* This rank's directory of states, for the others (at most 48 MiB), and theirs: valid until the next barrier. */
CASTOR_API int castor_directory_put(castor_store *store, const void *data, size_t bytes);
CASTOR_API const void *castor_directory_get(castor_store *store, int rank, size_t *bytes);

/* ---- the explicit API: Gemini's chunk search ---------------------------------------------------------------------
 *
 * A plain function of its arguments, the same on every rank. */

/* The tensors of one data-parallel degree, in module order. */
typedef struct castor_chunk_group {
    const uint64_t *numel; /* elements of each tensor */
    uint64_t count;        /* tensors */
    uint64_t degree;       /* at least 1 */
    uint64_t chunk_numel;  /* found: the elements of a chunk */
    int32_t keep_gathered; /* found: 1 where the group is one chunk below `minimum` */
} castor_chunk_group;

typedef struct castor_chunk_range {
    uint64_t numel;    /* elements: from the first size up to and with that + numel */
    uint64_t interval; /* between sizes, at least 1 */
    uint64_t minimum;  /* elements of a chunk */
    int32_t filter;    /* 1: tensors above the mean + 3 population standard deviations do not decide */
} castor_chunk_range;

/* A group of fewer than `minimum` elements is one chunk, kept gathered. For the others: the size with least waste, the first
 * of such, rounded up to the least common multiple of all degrees. The first size is the largest tensor or `minimum`, rounded
 * up to `interval`; the waste is what stays free when tensors go into chunks in order and a new chunk begins where the next one does not
 * fit. `numel` takes the elements of all tensors, `wasted` that waste. CASTOR_ERR_ARGUMENT. Source: Gemini's chunk search. */
CASTOR_API int castor_chunk_search(castor_chunk_group *groups, uint32_t count,
                                   const castor_chunk_range *range, uint64_t *numel, uint64_t *wasted);

/* ---- the explicit API: what training loops count --------------------------------------------------------------
 *
 * Plain functions of their arguments: they need no store, no PyTorch and no `castor run`. */

/* The temperature of an AnnealingScheduler after `step` steps: `start` while step <= warmup_steps; else `end` if
 * step >= annealing_step; else start - (step / annealing_step) * (start - end). */
CASTOR_API double castor_annealing(double start, double end, double warmup_steps, double annealing_step,
                                   double step);

/* Gradient accumulation over `size` micro-steps, of which `count` were made since the last step. The boundary is the
 * micro-step that makes them `size`: only there gradients are communicated, clipped and stepped. */
typedef struct castor_accumulation {
    int64_t size, count;
} castor_accumulation;

/* CASTOR_ERR_ARGUMENT unless size >= 1. */
CASTOR_API int castor_accumulation_begin(castor_accumulation *accumulation, int64_t size);
/* Counts a micro-step. 1: it is at the boundary. */
CASTOR_API int castor_accumulation_count(castor_accumulation *accumulation);
/* 1: the micro-step that was counted last is at the boundary; the next one will be. */
CASTOR_API int castor_accumulation_at_boundary(const castor_accumulation *accumulation);
CASTOR_API int castor_accumulation_next_at_boundary(const castor_accumulation *accumulation);
/* 1: no micro-step was made since the last step, and gradients may be zeroed. */
CASTOR_API int castor_accumulation_is_empty(const castor_accumulation *accumulation);
/* 1 at the boundary, and the count begins anew: the caller steps. */
CASTOR_API int castor_accumulation_take_step(castor_accumulation *accumulation);
/* Counts a call and takes the step: 1 at each size-th call. */
CASTOR_API int castor_accumulation_every(castor_accumulation *accumulation);
/* Of `count` batches, how many make whole steps of `size`, and how many steps those are. CASTOR_ERR_ARGUMENT for a size
 * below 1 or a count below 0. */
CASTOR_API int castor_accumulation_length(int64_t count, int64_t size, int64_t *length, int64_t *steps);

/* ---- memory budget ------------------------------------------------------------------------------------------ */

/* Under CASTOR_MEMORY_BUDGET an optimizer's step, and what else works on all gradients, is made in parts. Divides `count`
 * parameters of these bytes, in their order, into parts for which there is room, and that have `most` bytes at most (0: as many as
 * there is room for). ends[i], of at least one and `count` elements: the first parameter behind part i. Returns how many parts. */
CASTOR_API uint32_t castor_part_divide(const castor_store *s, const uint64_t *bytes, uint32_t count,
                                       uint64_t most, uint32_t *ends);
/* Part `number`: the tensors' chunks of these kinds (1 parameters, 2 sums, 4 states) are in memory when this returns, as far as
 * this rank owns them, and stay there until castor_part_end. CASTOR_ERR_MEMORY: the budget has no room for them. */
CASTOR_API int castor_part_begin(castor_store *s, int kinds, uint32_t number, castor_tensor *const *tensors,
                                 uint32_t count);
/* States that were placed since the last part may leave from here on, as what the part used may. */
CASTOR_API int castor_part_end(castor_store *s);

/* What of this rank's data is where, in bytes. Kinds: parameters, gradients, optimizer states; tiers: device, host, disk; moments:
 * forward, backward, gradient, optimizer. */
typedef struct castor_memory {
    uint64_t budget_bytes;    /* of the node; 0: none */
    uint64_t chunk_bytes;     /* of one chunk; 0: no chunks */
    uint64_t bytes[3][3];     /* by kind and tier: of the chunks that this rank owns */
    uint64_t other_bytes;     /* of its other CPU blocks, now */
    uint64_t moment_bytes[4]; /* under a budget, the most in memory while in such moments: of its chunks */
    uint64_t moment_other_bytes[4]; /* ... and its share of the node's other data */
    uint64_t moves, moved_bytes;    /* between tiers */
    uint64_t hits, late,
        misses;        /* accesses of chunks that were away: brought ahead in time, too late, not ahead */
    uint64_t stall_ns; /* that accesses waited */
} castor_memory;
/* Bytes that may still be used on this node, or in this process's control group: the smaller. */
CASTOR_API uint64_t castor_memory_available(void);
CASTOR_API void castor_memory_get(castor_memory *out);

/* ---- optimizer steps ---------------------------------------------------------------------------------------- */

/* One pass over parameter, gradient and states, in float, on `threads` threads (torch.get_num_threads()) of the pool that
 * PyTorch uses, in the order and with the rounding of its own operations on CPUs: with float parameters and gradients each bit
 * is what torch.optim's class gives (of no numbers: no number again). That holds as long as capturable, differentiable and
 * complex numbers stay out, betas and weight_decay are Python numbers, lr is one or a tensor's item(), and
 * torch.set_flush_denormal(True) was not called; with fused=True, without a GradScaler (it hands its scale to such an optimizer,
 * which divides by it). 16-bit gradients and parameters are widened, stepped as float and rounded to nearest even: that is what
 * torch.optim gives for a float copy (`master`), not what it gives for 16-bit parameters, which have 16-bit states.
 *
 * A gradient is multiplied by inv_scale and then by clip; 1 is nothing, and what torch's unscale and clipping give otherwise if
 * it is float. The gradient itself stays as it is; those write it, and so does SGD with foreach and nesterov. `decay` is weight_decay, or 1 - lr * weight_decay for
 * CASTOR_DECAY_DECOUPLED; CASTOR_DECAY_NONE when weight_decay == 0.
 *
 * All doubles are Python's, before any rounding, as the expressions beside them give them; `t` is the step, counted from 1. The
 * caller counts it (state["step"]), and steps tensors of other `t` by another call. Memory is dense, in one order of
 * elements for all arrays of a range. */
enum { CASTOR_DECAY_NONE, CASTOR_DECAY_COUPLED, CASTOR_DECAY_DECOUPLED };
enum { CASTOR_DTYPE_F32 = 0, CASTOR_DTYPE_F16 = 2, CASTOR_DTYPE_BF16 = 3 };

/* `count` elements of a tensor of `numel`, from its element `offset` on; a whole one: 0, numel, numel. The pointers are those
 * of the first of them. A step may be made range by range, in any order. */
typedef struct castor_step_range {
    void *param;
    const void *grad;
    float *master;    /* or NULL; else it is stepped, and the parameter becomes its rounded value */
    float *states[3]; /* as each step says; else NULL */
    size_t offset, count, numel;
} castor_step_range;

typedef struct castor_step {
    int32_t param_dtype, grad_dtype; /* CASTOR_DTYPE_ */
    int32_t decay_kind;              /* CASTOR_DECAY_ */
    int32_t fused;                   /* 1: as with fused=True; 0: as by default and with foreach=True */
    int32_t separate;                /* 1: torch.backends.cpu.get_cpu_capability() is "DEFAULT", on x86 */
    int32_t maximize;
    int32_t variation; /* Adam: amsgrad; SGD: nesterov; else 0 */
    int32_t unused;
    double inv_scale, clip, decay;
} castor_step;

/* Adam and AdamW. States: exp_avg, exp_avg_sq and, with amsgrad, max_exp_avg_sq. */
typedef struct castor_adam {
    castor_step step;
    double mean_weight;   /* 1 - beta1 */
    double square_keep;   /* beta2 */
    double square_weight; /* 1 - beta2 */
    double root_divisor;  /* (1 - beta2 ** t) ** 0.5 */
    double epsilon;       /* eps */
    double negative_step; /* -(lr / (1 - beta1 ** t)) */
} castor_adam;

/* SGD; no decoupled decay. States: momentum_buffer; none with momentum == 0. At the first step of a tensor, where torch has no
 * buffer yet: memory of its size and first = 1. */
typedef struct castor_sgd {
    castor_step step;
    double momentum;
    double grad_weight; /* 1 - dampening */
    double negative_lr; /* -lr */
    int32_t first, unused;
} castor_sgd;

/* Lion. States: exp_avg. With operations of torch: p.mul_(decay) if decoupled; u = exp_avg.mul(beta1).add_(grad, alpha=1 - beta1);
 * p.add_(u.sign_(), alpha=-lr); exp_avg.mul_(beta2).add_(grad, alpha=1 - beta2). */
typedef struct castor_lion {
    castor_step step;
    double update_keep, update_weight;     /* beta1, 1 - beta1 */
    double momentum_keep, momentum_weight; /* beta2, 1 - beta2 */
    double negative_lr;                    /* -lr */
} castor_lion;

/* `count` ranges, which do not overlap. CASTOR_ERR_ARGUMENT, and nothing was stepped: a missing pointer, an unknown type or
 * kind, a range beyond its tensor. */
CASTOR_API int castor_optimizer_adam(const castor_adam *adam, const castor_step_range *ranges, uint32_t count,
                                     int threads);
CASTOR_API int castor_optimizer_sgd(const castor_sgd *sgd, const castor_step_range *ranges, uint32_t count,
                                    int threads);
CASTOR_API int castor_optimizer_lion(const castor_lion *lion, const castor_step_range *ranges, uint32_t count,
                                     int threads);

/* ---- CASTOR_PRECISION ------------------------------------------------------------------------------------------- */

/* `count` arrays of 16-bit numbers (`dtype`: CASTOR_DTYPE_F16 or _BF16), numel[i] each, which were narrow[i] = wide[i] rounded until
 * something wrote into some of them: the wide values behind those become theirs, all others stay. changed[i]: 1 where there
 * were such. */
CASTOR_API void castor_settle(int dtype, float *const *wide, const void *const *narrow, const uint64_t *numel,
                              uint32_t count, uint8_t *changed);

/* Under fp16: what losses are multiplied by, and the steps since it changed. */
typedef struct castor_loss_scale {
    double scale;
    int64_t good;
} castor_loss_scale;
CASTOR_API void castor_loss_scale_begin(castor_loss_scale *scale);
/* A gradient overflowed, on this rank or on another: the scale becomes smaller. `logs`: 1 on the rank that logs it. */
CASTOR_API void castor_loss_scale_overflowed(castor_loss_scale *scale, int logs);
/* A step was made: after many of them without an overflow the scale becomes larger. */
CASTOR_API void castor_loss_scale_stepped(castor_loss_scale *scale, int logs);

/* ---- single-process scripts whose batches are split over ranks ---------------------------------------------------- */

/* The samples of a batch of `count`, from *first on, *last excluded, that are this rank's, and their share of the batch. A rank for
 * which there is none computes with one sample that is another's: 0. */
CASTOR_API double castor_batch_part(uint64_t count, int rank, int world, uint64_t *first, uint64_t *last);
/* What each rank's loss counts for, as CASTOR_LOSS says. `weights`: the share of the batch's samples that each of `ranks` has;
 * `rows`: CASTOR_LOSS_ROW numbers of each (none for CASTOR_LOSS=mean and =sum): how many terms its loss has, then kind
 * (CASTOR_TERM_) and count of the first CASTOR_LOSS_TERMS, then zeros. Every rank passes the same.
 * CASTOR_ERR_MISMATCH: no share of a rank is right for all terms. */
#define CASTOR_LOSS_TERMS            8
#define CASTOR_LOSS_ROW              17
#define CASTOR_TERM_MEAN_OF_TARGETS  1 /* count: targets that count, or the sum of their classes' weights */
#define CASTOR_TERM_SUM_DIVIDED      2 /* count: what the script divided by */
#define CASTOR_TERM_MEAN_OF_ELEMENTS 3 /* count: elements */
#define CASTOR_TERM_SUM              4 /* count: 0 */
#define CASTOR_TERM_OTHER            5 /* count: 0 */
CASTOR_API int castor_loss_shares(const double *weights, const double *rows, uint32_t ranks, double *shares);

/* ---- the audit of split batches ------------------------------------------------------------------------------- */

/* A gradient in CASTOR_SKETCH_BUCKETS sums, which are added to `sketch` times `weight`: what is close in all of them is
 * close, and the sketch of a difference is the difference of the sketches. `dtype`: CASTOR_DTYPE_. */
#define CASTOR_SKETCH_BUCKETS 32
CASTOR_API void castor_sketch_add(int dtype, const void *values, uint64_t numel, double weight,
                                  double *sketch);

#define CASTOR_AUDIT_EQUAL     0
#define CASTOR_AUDIT_DIFFERENT 1
#define CASTOR_AUDIT_UNKNOWN   2 /* infinite, or no number, on one side */
#define CASTOR_AUDIT_SUM                                                                                     \
    3 /* different: the whole is `ranks` times the parts, which a sum over samples would be */
#define CASTOR_AUDIT_SINGLE 0 /* computed in float or double */
#define CASTOR_AUDIT_HALF   1 /* some of it in 16 bits */
#define CASTOR_AUDIT_LOOSE  2 /* with other random numbers */

typedef struct castor_audit {
    double whole_loss, parts_loss; /* in; NaN both: there is no one loss */
    int32_t rounding;              /* in: CASTOR_AUDIT_SINGLE... */
    int32_t verdict;               /* out: CASTOR_AUDIT_EQUAL... */
    double whole_norm, parts_norm; /* out: norms of all gradients, estimated within a few percent */
    double difference;             /* out: relative, the larger of the loss's and the gradients' */
    uint32_t worst;                /* out: the gradient that differs most */
    uint32_t ranks;                /* in */
} castor_audit;

/* Whether one backward of the whole batch gave what the ranks' parts gave together: `count` sketches of each, one after the
 * other. */
CASTOR_API void castor_audit_compare(const double *whole, const double *parts, uint32_t count,
                                     castor_audit *audit);
/* For the report: a backward was compared, and found equal with this relative difference. */
CASTOR_API void castor_event_audit(double difference);

#ifdef __cplusplus
}
#endif
#endif
