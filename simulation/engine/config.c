/* What the environment says: devices, and the failures and delays that a test wants. */
#include "sim.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define RULES_MAX  32
#define CALLED_MAX 512

struct rule {
    char name[64];
    unsigned long from;
    bool onwards;
    int code;
    unsigned long microseconds;
    atomic_ulong calls;
};

static struct sim_config config;
static pthread_once_t configured = PTHREAD_ONCE_INIT;
static struct rule failures[RULES_MAX], latencies[RULES_MAX];
static struct hang {
    char kind[16];
    int device; /* -1: each, on its own count */
    unsigned long at;
    atomic_ulong operations[SIM_DEVICES_MAX];
} hangs[RULES_MAX];
static size_t failure_count, latency_count, hang_count;
static struct called {
    const char *function;
    unsigned long calls, failed;
} called[CALLED_MAX]; /* since the failures were set, of each function; none without failures */
static size_t called_count;
static pthread_mutex_t called_lock = PTHREAD_MUTEX_INITIALIZER; /* of both */
static atomic_uint hangs_set;                                   /* how often */
static pthread_rwlock_t rules_lock = PTHREAD_RWLOCK_INITIALIZER;
atomic_bool sim_faults_active;
static atomic_bool forked;

void sim_say(const char *format, ...) {
    char line[512];
    va_list list;
    int used = snprintf(line, sizeof line, "sim: ");

    va_start(list, format);
    used += vsnprintf(line + used, sizeof line - (size_t)used - 1, format, list);
    va_end(list);
    if (used > (int)sizeof line - 2)
        used = sizeof line - 2;
    line[used++] = '\n';
    if (write(STDERR_FILENO, line, (size_t)used) < 0)
        return;
}

static double read_number(const char *name, const char *text, double otherwise) {
    char *end;
    double value = strtod(text, &end);

    switch (*end) {
    case 'T':
        value *= 1024;
        /* fall through */
    case 'G':
        value *= 1024;
        /* fall through */
    case 'M':
        value *= 1024;
        /* fall through */
    case 'K':
        value *= 1024;
        end++;
        break;
    default:
        break;
    }
    if (end == text || *end || value < 1) {
        sim_say("%s=%s is no size; expected a number with K, M, G or T; using %.0f", name, text, otherwise);
        return otherwise;
    }
    return value;
}

/* As CUDA reads it: numbers with commas between, up to the first that is no device. */
static void read_visible(const char *text) {
    int all = config.devices, count = 0;

    for (int i = 0; i < all; i++)
        config.visible[i] = i;
    while (text && count < all) {
        char *end;
        long number = strtol(text, &end, 10);
        if (end == text || number < 0 || number >= all)
            break;
        config.visible[count++] = (int)number;
        if (*end != ',')
            break;
        text = end + 1;
    }
    if (text)
        config.devices = count;
}

static void read_refused(const char *text) {
    while (text && *text) {
        size_t length = strcspn(text, ",");
        if (length == strlen("host-pages") && strncmp(text, "host-pages", length) == 0)
            config.refuses_host_pages = true;
        else if (length == strlen("host-alloc") && strncmp(text, "host-alloc", length) == 0)
            config.refuses_host_alloc = true;
        else
            sim_say("SIM_REFUSES=%s; expected host-pages, host-alloc, or both with a comma", text);
        text += length + (text[length] == ',');
    }
}

static void in_child(void) {
    atomic_store(&forked, true);
}

bool sim_forked(void) {
    return atomic_load_explicit(&forked, memory_order_relaxed);
}

static void configure(void) {
    const char *text;

    config.devices = 1;
    config.memory = (size_t)80 << 30;
    config.major = 9;
    if ((text = getenv("SIM_DEVICES"))) {
        config.devices = atoi(text);
        if (config.devices < 0 || config.devices > SIM_DEVICES_MAX) {
            sim_say("SIM_DEVICES=%s; expected 0 to %d; using 1", text, SIM_DEVICES_MAX);
            config.devices = 1;
        }
    }
    read_visible(getenv("CUDA_VISIBLE_DEVICES"));
    if ((text = getenv("SIM_MEMORY")))
        config.memory = (size_t)read_number("SIM_MEMORY", text, (double)config.memory);
    if ((text = getenv("SIM_HOST_MEMORY")))
        config.host_memory = (size_t)read_number("SIM_HOST_MEMORY", text, 0);
    read_refused(getenv("SIM_REFUSES"));
    config.blank = (text = getenv("SIM_BLANK")) && strcmp(text, "1") == 0;
    if ((text = getenv("SIM_LINK_BANDWIDTH")))
        config.link_bandwidth = read_number("SIM_LINK_BANDWIDTH", text, 0);
    if ((text = getenv("SIM_COMPUTE")) && sscanf(text, "%d.%d", &config.major, &config.minor) != 2) {
        sim_say("SIM_COMPUTE=%s; expected for instance 9.0", text);
        config.major = 9;
        config.minor = 0;
    }
    config.check_faults = (text = getenv("SIM_CHECK")) && strcmp(text, "fault") == 0;
    config.verbose = (text = getenv("SIM_VERBOSE")) && strcmp(text, "1") == 0;
    config.log_launches = getenv("SIM_LAUNCHES") != NULL;
    sim_fault_set(getenv("SIM_FAIL"), getenv("SIM_LATENCY"));
    sim_hang_set(getenv("SIM_HANG"));
    pthread_atfork(NULL, NULL, in_child);
}

const struct sim_config *sim_config(void) {
    pthread_once(&configured, configure);
    return &config;
}

static size_t read_rules(const char *text, struct rule *rules, bool failure) {
    size_t count = 0;

    while (text && *text) {
        struct rule *rule = &rules[count];
        size_t length = strcspn(text, ",");
        char item[128], star = 0;
        int fields;

        if (length >= sizeof item || count == RULES_MAX) {
            sim_say("too long or too many rules at %s", text);
            return count;
        }
        memcpy(item, text, length);
        item[length] = 0;
        text += length + (text[length] == ',');
        memset(rule, 0, sizeof *rule);
        if (failure) {
            fields = sscanf(item, "%63[^:]:%lu%c", rule->name, &rule->from, &star);
            rule->onwards = star == '*';
            const char *code = strrchr(item, ':');
            fields = fields >= 2 && code && sscanf(code, ":%d", &rule->code) == 1;
        } else {
            fields = sscanf(item, "%63[^:]:%lu", rule->name, &rule->microseconds) == 2;
        }
        if (!fields) {
            sim_say("%s is no rule; expected %s", item,
                    failure ? "FUNCTION:CALL[*]:CODE" : "NAME:MICROSECONDS");
            continue;
        }
        count++;
    }
    return count;
}

int sim_fault_set(const char *failing, const char *slow) {
    pthread_rwlock_wrlock(&rules_lock);
    called_count = 0;
    failure_count = read_rules(failing, failures, true);
    latency_count = read_rules(slow, latencies, false);
    atomic_store(&sim_faults_active, failure_count + latency_count + hang_count > 0);
    pthread_rwlock_unlock(&rules_lock);
    return (int)(failure_count + latency_count);
}

int sim_hang_set(const char *text) {
    pthread_rwlock_wrlock(&rules_lock);
    hang_count = 0;
    while (text && *text && hang_count < RULES_MAX) {
        struct hang *hang = &hangs[hang_count];
        memset(hang, 0, sizeof *hang);
        hang->device = -1;
        if (sscanf(text, "%15[^:]:%lu:%d", hang->kind, &hang->at, &hang->device) >= 2)
            hang_count++;
        else
            sim_say("%s is no rule; expected KIND:NUMBER[:DEVICE]", text);
        text += strcspn(text, ",");
        text += *text == ',';
    }
    atomic_fetch_add(&hangs_set, 1); /* what hangs goes on */
    atomic_store(&sim_faults_active, failure_count + latency_count + hang_count > 0);
    pthread_rwlock_unlock(&rules_lock);
    return (int)hang_count;
}

void sim_hang_look(const char *kind, int device) {
    bool here = false;

    pthread_rwlock_rdlock(&rules_lock);
    unsigned set = atomic_load(&hangs_set);
    for (size_t i = 0; i < hang_count; i++) {
        if (strcmp(hangs[i].kind, kind) == 0 && (hangs[i].device < 0 || hangs[i].device == device))
            here |= atomic_fetch_add(&hangs[i].operations[device], 1) + 1 == hangs[i].at;
    }
    pthread_rwlock_unlock(&rules_lock);
    while (here && atomic_load(&hangs_set) == set) {
        struct timespec time = {0, 10000000};
        nanosleep(&time, NULL);
    }
}

static void count(const char *function, bool failed) {
    size_t i = 0;

    pthread_mutex_lock(&called_lock);
    while (i < called_count && strcmp(called[i].function, function) != 0)
        i++;
    if (i == called_count && i < CALLED_MAX)
        called[called_count++] = (struct called){.function = function};
    if (i < CALLED_MAX) {
        called[i].calls++;
        called[i].failed += failed;
    }
    pthread_mutex_unlock(&called_lock);
}

size_t sim_fault_calls(char *text, size_t size) {
    size_t used = 0;

    pthread_mutex_lock(&called_lock);
    for (size_t i = 0; i < called_count && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s %lu %lu\n", called[i].function,
                                 called[i].calls, called[i].failed);
    pthread_mutex_unlock(&called_lock);
    return used;
}

int sim_fault_look(const char *function) {
    unsigned long microseconds = 0;
    int code = 0;

    pthread_rwlock_rdlock(&rules_lock);
    for (size_t i = 0; i < latency_count; i++) {
        if (strcmp(latencies[i].name, function) == 0)
            microseconds = latencies[i].microseconds;
    }
    for (size_t i = 0; i < failure_count; i++) {
        if (strcmp(failures[i].name, function) != 0)
            continue;
        unsigned long call = atomic_fetch_add(&failures[i].calls, 1) + 1;
        if (call == failures[i].from || (failures[i].onwards && call > failures[i].from))
            code = failures[i].code;
    }
    if (failure_count)
        count(function, code != 0);
    pthread_rwlock_unlock(&rules_lock);
    if (microseconds) {
        struct timespec time = {(time_t)(microseconds / 1000000), (long)(microseconds % 1000000) * 1000};
        nanosleep(&time, NULL);
    }
    return code;
}

/* sim_faults_active is set when the configuration is read, which the first call of any API does. */
__attribute__((constructor)) static void read_early(void) {
    if (getenv("SIM_FAIL") || getenv("SIM_LATENCY") || getenv("SIM_HANG"))
        sim_config();
}
