#include "plan.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include "base/log.h"
#include "base/machine.h"
#include "launcher/common/command_line.h"

enum { STATUS_MADE = 0, STATUS_NOTHING_FITS = 1, STATUS_USAGE = 2 };

typedef struct request {
    plan_cluster cluster;
    const char *model, *directory;
    char *const *command;
    uint64_t batch;
    void (*write)(const plan_model *model, const plan_cluster *cluster, const plans *plans, FILE *out);
} request;

static plan_cluster assumed_cluster(void) {
    return (plan_cluster){
        .nodes = 1,
        .cores = (uint32_t)machine_cores_usable(),
#define ASSUMED(id, key, value, doc) .id = value,
#include "assumed.def"
    };
}

/* An option's number, whole, from `least` to `most`. */
static bool take_count(const char *name, const char *text, uint64_t least, uint64_t most, uint32_t *out) {
    uint64_t value;
    if (!option_bytes_parse(text, &value) || value < least || value > most) {
        LOG_E("plan: %s %s: must be a whole number from %llu to %llu", name, text, (unsigned long long)least,
              (unsigned long long)most);
        return false;
    }
    *out = (uint32_t)value;
    return true;
}

static bool take_bytes(const char *name, const char *what, const char *text, uint64_t *out) {
    if (!option_bytes_parse(text, out) || *out == 0 || *out > 1ull << 60) {
        LOG_E("plan: %s %s: must be %s, as 40G (" OPTION_BYTES_NOTE ")", name, text, what);
        return false;
    }
    return true;
}

static bool take_rate(const char *name, const char *text, double *out) {
    uint64_t bytes;
    if (!take_bytes(name, "a number of bytes a second", text, &bytes))
        return false;
    *out = (double)bytes;
    return true;
}

/* 200T, 1e14: operations. */
static bool take_speed(const char *text, plan_cluster *cluster) {
    char *end;
    double value = strtod(text, &end);
    if (*end == 'G' || *end == 'T') {
        value *= *end == 'G' ? 1e9 : 1e12;
        end++;
    }
    if (end == text || *end || !(value >= 1e6 && value <= 1e18)) {
        LOG_E("plan: --speed %s: must be operations a second of a device or a core, as 200T", text);
        return false;
    }
    cluster->device_flops = cluster->core_flops = value;
    return true;
}

static bool take_option(int id, const char *value, request *r) {
    plan_cluster *c = &r->cluster;
    switch (id) {
    case ARGUMENT_plan_model:
        r->model = value;
        return true;
    case ARGUMENT_plan_nodes:
        return take_count("--nodes", value, 1, PLAN_NODES_MAX, &c->nodes);
    case ARGUMENT_plan_devices:
        return take_count("--devices", value, 0, 1024, &c->devices);
    case ARGUMENT_plan_cores:
        return take_count("--cores", value, 1, 1024, &c->cores);
    case ARGUMENT_plan_threads:
        return take_count("--threads", value, 1, 1024, &c->threads);
    case ARGUMENT_plan_memory:
        return take_bytes("--memory", "a number of bytes", value, &c->device_bytes);
    case ARGUMENT_plan_host:
        return take_bytes("--host", "a number of bytes", value, &c->host_bytes);
    case ARGUMENT_plan_batch:
        return take_bytes("--batch", "a number of tokens", value, &r->batch);
    case ARGUMENT_plan_link:
        return take_rate("--link", value, &c->link);
    case ARGUMENT_plan_network:
        return take_rate("--network", value, &c->network);
    case ARGUMENT_plan_disk:
        return take_rate("--disk", value, &c->disk);
    case ARGUMENT_plan_speed:
        return take_speed(value, c);
    case ARGUMENT_plan_format:
        r->write = strcmp(value, "json") == 0   ? plan_write_json
                   : strcmp(value, "html") == 0 ? plan_write_html
                                                : plan_write_text;
        return true;
    }
    return false;
}

static int check_request(request *r) {
    if ((r->model != NULL) + (r->directory != NULL) + (r->command != NULL) != 1) {
        LOG_E("plan: %s: castor plan --model 12x768x12x50257 ..., castor plan DIR ... for the log directory "
              "of a run, or castor plan ... -- COMMAND",
              r->model || r->directory || r->command ? "takes one model" : "a model is missing");
        return STATUS_USAGE;
    }
    if (r->model != NULL && r->batch == 0) {
        LOG_E("plan: --batch is missing: the tokens of a step of all ranks, as --batch 64K");
        return STATUS_USAGE;
    }
    if (r->cluster.device_bytes && r->cluster.devices == 0) {
        LOG_E("plan: --memory is of a device, and there is none: add --devices N, or give a node's memory by "
              "--host");
        return STATUS_USAGE;
    }
    if ((uint64_t)r->cluster.nodes * r->cluster.devices > PLAN_RANKS_MAX) {
        LOG_E("plan: --nodes %u --devices %u: at most %d devices in all", r->cluster.nodes,
              r->cluster.devices, PLAN_RANKS_MAX);
        return STATUS_USAGE;
    }
    return -1;
}

static int parse_arguments(int argc, char **argv, request *r) {
    *r = (request){.cluster = assumed_cluster(), .write = plan_write_text};
    command_line line = {SUBCOMMAND_plan, argc, argv, 1, NULL};
    for (;;) {
        int id = command_line_next(&line);
        switch (id) {
        case COMMAND_LINE_END:
            return check_request(r);
        case COMMAND_LINE_REST:
            r->command = argv + line.next;
            if (*r->command == NULL) {
                LOG_E("plan: a command is missing after --: castor plan -- python train.py");
                return STATUS_USAGE;
            }
            return check_request(r);
        case COMMAND_LINE_WORD:
            if (r->directory != NULL) {
                LOG_E("plan: takes one log directory; not also %s", line.value);
                return STATUS_USAGE;
            }
            r->directory = line.value;
            break;
        case COMMAND_LINE_HELP:
            command_help_write(line.command, stdout);
            return STATUS_MADE;
        case COMMAND_LINE_WRONG:
            return STATUS_USAGE;
        default:
            if (!take_option(id, line.value, r))
                return STATUS_USAGE;
        }
    }
}

/* A step that was recorded on cores says nothing of devices, nor the other way round. */
static bool check_recorded(const plan_model *model, request *r) {
    if (model->on_devices && r->cluster.devices == 0)
        r->cluster.devices = model->ranks;
    if (!model->on_devices && r->cluster.devices) {
        LOG_E("plan: the recorded step was computed by cores, which says nothing of devices; use --model "
              "LAYERSxHIDDENxHEADSxVOCAB");
        return false;
    }
    return true;
}

static int take_model(request *r, plan_model *model) {
    char message[512], directory[PATH_MAX];
    int status = 0;
    if (r->model != NULL) {
        if (!plan_model_parse(r->model, model, message, sizeof message)) {
            LOG_E("plan: %s", message);
            return STATUS_USAGE;
        }
        if (r->batch < model->context) {
            LOG_E("plan: --batch %llu: fewer tokens than one sequence of %llu; give its length as a fifth "
                  "figure of --model",
                  (unsigned long long)r->batch, (unsigned long long)model->context);
            status = STATUS_USAGE;
        }
    } else if (r->directory != NULL) {
        status =
            plan_model_read(r->directory, &r->cluster, model) && check_recorded(model, r) ? 0 : STATUS_USAGE;
    } else {
        status = plan_record(r->command, directory, sizeof directory);
        if (status == 0)
            status =
                plan_model_read(directory, &r->cluster, model) && check_recorded(model, r) ? 0 : STATUS_USAGE;
    }
    if (status == 0 && !plan_model_settle(model, &r->cluster, r->batch)) {
        LOG_E("plan: --batch %llu: too many tokens for this model", (unsigned long long)r->batch);
        status = STATUS_USAGE;
    }
    return status;
}

int plan_main(int argc, char **argv) {
    static plan_model model;
    request r;
    plans found;
    int status = parse_arguments(argc, argv, &r);
    if (status >= 0)
        return status;
    status = take_model(&r, &model);
    if (status == 0 && !plans_find(&model, &r.cluster, &found)) {
        LOG_E("plan: memory is out");
        status = STATUS_USAGE;
    } else if (status == 0) {
        r.write(&model, &r.cluster, &found, stdout);
        status = plans_best(&found) != NULL ? STATUS_MADE : STATUS_NOTHING_FITS;
        plans_free(&found);
        if (fflush(stdout) != 0) {
            LOG_E("standard output cannot be written: %s", strerror(errno));
            status = STATUS_USAGE;
        }
    }
    plan_model_free(&model);
    return status;
}
