/* What each device can do of what homes need (interpose/device/probe.h), found by a program that does it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include "launcher/common/text_table.h"
#include "doctor.h"

#define DEVICES_SHOWN 64

/* As the library's probe counts them. */
enum { LEVEL_NONE, LEVEL_PAGES, LEVEL_HOST_MEMORY, LEVEL_HOST_PAGES, LEVEL_FLIPS };
enum { LINE_PAGES, LINE_HOST_PAGES, LINE_FLIPS, LINE_LINK, LINE_COUNT };

/* Names of checks live as long as the program. */
static const char *name_of(unsigned device, int line) {
    static char names[DEVICES_SHOWN][LINE_COUNT][32];
    static const char *const whats[LINE_COUNT] = {"pages", "host pages", "flips", "link"};
    snprintf(names[device][line], sizeof names[device][line], "%u: %s", device, whats[line]);
    return names[device][line];
}

static const char *field(const doctor_fact *fact, int index) {
    return fact != NULL ? fact->fields[index] : "";
}

static uint64_t number(const doctor_fact *fact, int index) {
    return strtoull(field(fact, index), NULL, 10);
}

/* The fact of that key about a device. */
static const doctor_fact *fact_of(const doctor_probe *probe, const char *key, const char *device) {
    for (const doctor_fact *fact = NULL; (fact = doctor_probe_fact(probe, key, fact)) != NULL;)
        if (strcmp(fact->fields[1], device) == 0)
            return fact;
    return NULL;
}

/* What to do where a line's level was not reached. */
static void advise(doctor_checks *checks, int line, uint64_t level) {
    static const char *const advice[] = {
        [LINE_PAGES] =
            "model data stays where scripts have it: the device and its driver must map memory (CUDA "
            "12.2 or later, no vGPU or WSL)",
        [LINE_HOST_PAGES] = "model data stays where scripts have it: a driver for CUDA 12.2 or later maps "
                            "host memory at a device's "
                            "addresses; in a container, see whether it may lock memory (ulimit -l)",
        [LINE_FLIPS] =
            "model data stays where scripts have it: see whether another process has filled the device",
    };
    doctor_advise(
        checks, "%s",
        level == LEVEL_HOST_MEMORY
            ? "what is on the host stays there, and nothing is moved when memory runs out: give "
              "CASTOR_DEVICE_BUDGET. A driver for CUDA 12.2 or later maps such pages; in a container, see "
              "whether it may lock memory (ulimit -l)"
            : advice[line]);
}

static void check_link(doctor_checks *checks, unsigned device, const doctor_fact *copies) {
    double bytes = (double)number(copies, 2), rates[2];
    char figures[2][TEXT_FIGURE_MAX], size[TEXT_FIGURE_MAX];
    for (int to = 0; to < 2; to++) {
        uint64_t ns = number(copies, 3 + to);
        rates[to] = ns > 0 ? bytes * 1e9 / (double)ns : 0;
        text_rate(figures[to], rates[to]);
    }
    if (rates[0] > 0 && rates[1] > 0)
        doctor_add(checks, DOCTOR_GROUP_DEVICES, name_of(device, LINE_LINK), DOCTOR_OK,
                   "%s to the device, %s to the host (copies of %s)", figures[0], figures[1],
                   text_bytes(size, number(copies, 2)));
}

/* `why`: what the next level lacks. */
static void check_levels(doctor_checks *checks, unsigned device, const doctor_probe *probe, const char *why) {
    static const uint64_t reached[] = {LEVEL_PAGES, LEVEL_HOST_PAGES, LEVEL_FLIPS};
    char key[16], unit[TEXT_FIGURE_MAX], total[TEXT_FIGURE_MAX], host[TEXT_FIGURE_MAX];
    snprintf(key, sizeof key, "%u", device);
    const char *name = field(fact_of(probe, "device", key), 2);
    const doctor_fact *memory = fact_of(probe, "memory", key);
    uint64_t level = number(fact_of(probe, "level", key), 2);
    text_bytes(unit, number(memory, 2));
    text_bytes(total, number(memory, 3));
    text_bytes(host, number(memory, 4));
    for (int line = LINE_PAGES; line <= LINE_FLIPS; line++) {
        const char *label = name_of(device, line);
        if (level < reached[line]) {
            doctor_add(checks, DOCTOR_GROUP_DEVICES, label, DOCTOR_WARN, "%s: %s", name, why);
            advise(checks, line, level);
            break;
        }
        if (line == LINE_PAGES)
            doctor_add(checks, DOCTOR_GROUP_DEVICES, label, DOCTOR_OK, "%s: units of %s, %s of memory", name,
                       unit, total);
        else if (line == LINE_HOST_PAGES)
            doctor_add(checks, DOCTOR_GROUP_DEVICES, label, DOCTOR_OK,
                       "mapped at its addresses; at most %s now", host);
        else
            doctor_add(checks, DOCTOR_GROUP_DEVICES, label, DOCTOR_OK,
                       "model data moves to the host and back at one address");
    }
    check_link(checks, device, fact_of(probe, "copies", key));
}

/* How a program ended that has not said all. */
static void describe_end(const doctor_probe *probe, double limit_seconds, char *out, size_t out_size) {
    char limit[TEXT_FIGURE_MAX];
    const char *colon = probe->error[0] != '\0' ? ": " : "";
    if (probe->timed_out)
        snprintf(out, out_size, "no answer within %s", text_seconds(limit, limit_seconds));
    else if (WIFSIGNALED(probe->status))
        snprintf(out, out_size, "the probe ended by signal %d%s%s", WTERMSIG(probe->status), colon,
                 probe->error);
    else
        snprintf(out, out_size, "the probe ended with status %d%s%s", WEXITSTATUS(probe->status), colon,
                 probe->error);
}

void doctor_devices(doctor_checks *checks, char *const *command, double limit_seconds) {
    doctor_probe probe;
    char end[1024] = "";
    if (!doctor_probe_run(command, DOCTOR_PROGRAM_DEVICES, limit_seconds, &probe)) {
        doctor_probe_free(&probe);
        return; /* the first program ran, and would have said it */
    }
    if (doctor_probe_fact(&probe, "end", NULL) == NULL)
        describe_end(&probe, limit_seconds, end, sizeof end);
    bool any = false;
    for (const doctor_fact *device = NULL; (device = doctor_probe_fact(&probe, "device", device)) != NULL;) {
        uint64_t index = number(device, 1);
        const doctor_fact *level = fact_of(&probe, "level", field(device, 1));
        any = true;
        if (index < DEVICES_SHOWN)
            check_levels(checks, (unsigned)index, &probe, level != NULL ? field(level, 3) : end);
    }
    if (!any && end[0] != '\0') {
        doctor_add(checks, DOCTOR_GROUP_DEVICES, "probe", DOCTOR_WARN, "%s", end);
        doctor_advise(checks,
                      "model data on devices stays where scripts have it; see whether nvidia-smi works");
    }
    doctor_probe_free(&probe);
}
