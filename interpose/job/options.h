/* The options of a process: parsed once from the environment. Only a plugin object of the explicit API changes some of them,
 * before the engine starts.
 *
 * The only place that reads the environment is options.c. It is shared by the library and the launcher, and
 * does not call malloc: strings point into the environment block, which must not change before options_load
 * returns (the values are copied). */
#ifndef CASTOR_JOB_OPTIONS_H
#define CASTOR_JOB_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/status.h"

#define CASTOR_PLUGIN_NAMES "none|ddp|zero1|zero2|gemini|hybrid|fsdp"
#define OPTION_STRING_MAX   4096
#define OPTION_BYTES_AUTO   UINT64_MAX

typedef enum castor_plugin {
#define PLUGIN(id, name, engine, shards, doc) CASTOR_PLUGIN_##id,
#include "plugins.def"
    CASTOR_PLUGIN_COUNT
} castor_plugin;

typedef enum castor_on_error { CASTOR_ON_ERROR_ABORT, CASTOR_ON_ERROR_PASSTHROUGH } castor_on_error;
typedef enum castor_batch {
    CASTOR_BATCH_AUTO,
    CASTOR_BATCH_LOADER,
    CASTOR_BATCH_MODEL,
    CASTOR_BATCH_SCALE
} castor_batch;
typedef enum castor_loss {
    CASTOR_LOSS_AUTO,
    CASTOR_LOSS_MEAN,
    CASTOR_LOSS_SUM,
    CASTOR_LOSS_TOKENS
} castor_loss;
typedef enum castor_placement { CASTOR_PLACEMENT_AUTO, CASTOR_PLACEMENT_STATIC } castor_placement;
typedef enum castor_shard { CASTOR_SHARD_WORLD, CASTOR_SHARD_NODE } castor_shard;
typedef enum castor_begun { CASTOR_BEGUN_RUN, CASTOR_BEGUN_RUNS, CASTOR_BEGUN_PROCESS } castor_begun;
typedef enum castor_nproc { CASTOR_NPROC_OFF, CASTOR_NPROC_AUTO } castor_nproc;
typedef enum castor_fork { CASTOR_FORK_AUTO, CASTOR_FORK_OFF } castor_fork;

#define OPTION_FIELD_STRING(f)     char f[OPTION_STRING_MAX];
#define OPTION_FIELD_SIGNATURES(f) char f[OPTION_STRING_MAX];
#define OPTION_FIELD_BOOL(f)       bool f;
#define OPTION_FIELD_INT(f)        int f;
#define OPTION_FIELD_SECONDS(f)    double f;
#define OPTION_FIELD_FRACTION(f)   double f;
#define OPTION_FIELD_BYTES(f)      uint64_t f;
#define OPTION_FIELD_ENUM(f)       int f; /* position in the allowed list */
typedef struct castor_options {
#define OPTION(type, field, env, def, allowed, doc) OPTION_FIELD_##type(field)
#include "options.def"
} castor_options;

typedef enum option_id {
#define OPTION(type, field, env, def, allowed, doc) OPTION_ID_##field,
#include "options.def"
    OPTION_COUNT
} option_id;

typedef enum option_source { OPTION_FROM_DEFAULT, OPTION_FROM_ENVIRONMENT } option_source;

/* A row of the table, as data. */
typedef struct option_info {
    const char *type, *field, *env, *def, *allowed, *doc;
    bool internal;
} option_info;

extern const option_info option_table[OPTION_COUNT];

/* The options of this process. Valid after options_load. */
const castor_options *options(void);
option_source option_set_by(option_id id);

/* Parses `environment` (a NULL-terminated block such as environ). On a bad value or an unknown CASTOR_ name,
 * writes one line that says what is wrong, what is allowed and the nearest known name into `message`, and
 * returns CASTOR_ERR_ARGUMENT; the options that could be parsed are set, the others keep their defaults. */
castor_status options_load(char *const *environment, char *message, size_t message_size);

/* Checks one value of one option, as options_load would (`castor run --set NAME=VALUE`). */
castor_status option_check(const char *env_name, const char *value, char *message, size_t message_size);

/* Sets one option, as the environment would have. Errors as option_check. No other thread may read the option meanwhile. */
castor_status option_set(const char *env_name, const char *value, char *message, size_t message_size);

/* The value of an option as text, as `castor options` prints it. Returns the length. */
size_t option_format(option_id id, char *out, size_t out_size);

/* Numbers of options, as text. Without the C library's functions, which depend on the locale. */

/* A number of bytes, as options of sizes have it: "40G". False: it is none. */
bool option_bytes_parse(const char *text, uint64_t *out);

/* What messages and lists of options say about sizes. */
#define OPTION_BYTES_NOTE "K, M, G and T, also written KB or KiB, are powers of 1024"

#endif
