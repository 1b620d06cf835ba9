/* Starts the checks, each in a process of its own, and prints a line of JSON for each as it ends.
 *
 *     probe [--tiny] [--kernels FILE] [--cublas FILE] [--host-bytes N] [--limit SECONDS] [--list] [GROUP or CHECK]...
 *
 * The status is 0 when no check failed, 1 when one did, 2 for bad arguments. */
#include "probe.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int said_file = -1;

static const struct check *const tables[] = {checks_levels, checks_maps, checks_moves, checks_products,
                                             checks_costs};

/* ---- printing, in the first process ---- */

static void print_string(const char *name, const char *value) {
    printf(", \"%s\": \"%s\"", name, value);
}

/* The next line of the check's report, cut into its three parts; NULL at the end. */
static char *next_line(char *at, char **kind, char **name, char **value) {
    char *end = at ? strchr(at, '\n') : NULL;

    if (!end)
        return NULL;
    *end = '\0';
    *kind = at;
    *name = strchr(at, '\t') + 1;
    *value = strchr(*name, '\t') + 1;
    (*name)[-1] = (*value)[-1] = '\0';
    return end + 1;
}

/* The fields, then each list once, with all of its rows. */
static void print_said(void) {
    static char lines[SAID_BYTES + 1];
    char *kinds[4096], *names[4096], *values[4096], *at = lines;
    size_t count = 0;

    memcpy(lines, said->lines, said->bytes);
    lines[said->bytes] = '\0';
    while (count < 4096 && (at = next_line(at, &kinds[count], &names[count], &values[count])))
        count++;
    for (size_t i = 0; i < count; i++) {
        if (!kinds[i])
            continue;
        if (strcmp(kinds[i], "field") == 0) {
            printf(", \"%s\": %s", names[i], values[i]);
            continue;
        }
        printf(", \"%s\": [%s", names[i], values[i]);
        for (size_t j = i + 1; j < count; j++) {
            if (!kinds[j] || strcmp(kinds[j], "row") != 0 || strcmp(names[j], names[i]) != 0)
                continue;
            printf(", %s", values[j]);
            kinds[j] = NULL;
        }
        printf("]");
    }
}

/* ---- running ---- */

static bool wait_bounded(pid_t child, int *status, double seconds) {
    double deadline = now_us() + seconds * 1e6;

    do {
        pid_t ended = waitpid(child, status, WNOHANG);
        if (ended == child || (ended < 0 && errno != EINTR))
            return true;
        usleep(2000);
    } while (now_us() < deadline);
    return false;
}

/* In the check's process, which begins anew: nothing of the driver comes from a fork. `options` are the first process's own. */
static void become(const struct check *check, char **options, int count) {
    char *arguments[32], file[16];
    int at = 0;

    if (count > 24)
        return;
    arguments[at++] = "probe";
    for (int i = 0; i < count; i++)
        arguments[at++] = options[i];
    snprintf(file, sizeof file, "%d", said_file);
    arguments[at++] = "--inside";
    arguments[at++] = file;
    arguments[at++] = (char *)(uintptr_t)check->name;
    arguments[at] = NULL;
    execv("/proc/self/exe", arguments);
}

static bool said_map(void) {
    void *mapped = mmap(NULL, sizeof *said, PROT_READ | PROT_WRITE, MAP_SHARED, said_file, 0);

    said = mapped != MAP_FAILED ? mapped : NULL;
    return said;
}

static int run_inside(const char *name) {
    if (!said_map())
        return 1;
    for (size_t t = 0; t < sizeof tables / sizeof *tables; t++) {
        for (const struct check *check = tables[t]; check->name; check++) {
            if (strcmp(check->name, name) == 0)
                _exit(device_open() && check->run() ? 0
                                                    : 1); /* without the driver's own end, which may hang */
        }
    }
    return 1;
}

static bool run_check(const struct check *check, double limit_s, char **options, int count) {
    char text[1200] = "";
    const char *verdict = "ok";
    double begin = now_us();
    int status = 0;

    memset(said, 0, sizeof *said);
    fflush(stdout);
    pid_t child = fork();
    if (child < 0) {
        snprintf(said->why, sizeof said->why, "fork: %s", strerror(errno));
        status = 1 << 8;
    } else if (child == 0) {
        become(check, options, count);
        _exit(1);
    } else if (!wait_bounded(child, &status, limit_s)) {
        kill(child, SIGKILL);
        bool gone = wait_bounded(child, &status, 10); /* the driver may hold it while it gives memory back */
        verdict = "FAILED";
        snprintf(text, sizeof text, "not done after %.0f s%s", limit_s,
                 gone ? "" : ", and its process does not end");
    }
    if (strcmp(verdict, "ok") != 0) {
        /* said above */
    } else if (WIFSIGNALED(status)) {
        verdict = "FAILED";
        snprintf(text, sizeof text, "ended by signal %d", WTERMSIG(status));
    } else if (WEXITSTATUS(status) != 0) {
        verdict = said->left_out ? "left out" : "FAILED";
        snprintf(text, sizeof text, "%s", said->why);
    }
    printf("{\"check\": \"%s\", \"group\": \"%s\"", check->name, check->group);
    print_string("verdict", verdict);
    if (*text)
        print_string("why", text);
    printf(", \"seconds\": %.2f", (now_us() - begin) / 1e6);
    print_said();
    printf("}\n");
    fflush(stdout);
    return strcmp(verdict, "FAILED") != 0;
}

static bool wanted(const struct check *check, char **names, int count) {
    for (int i = 0; i < count; i++) {
        if (strcmp(names[i], check->name) == 0 || strcmp(names[i], check->group) == 0)
            return true;
    }
    return count == 0;
}

static bool known(const char *name) {
    for (size_t t = 0; t < sizeof tables / sizeof *tables; t++) {
        for (const struct check *check = tables[t]; check->name; check++) {
            if (strcmp(name, check->name) == 0 || strcmp(name, check->group) == 0)
                return true;
        }
    }
    return false;
}

static int usage(const char *what) {
    fprintf(stderr,
            "probe: %s\nusage: probe [--tiny] [--kernels FILE] [--cublas FILE] [--host-bytes N] [--limit "
            "SECONDS] [--list] [GROUP or CHECK]...\n",
            what);
    return 2;
}

int main(int argc, char **argv) {
    double begin = now_us(), limit_s = 540;
    bool list = false, well = true;
    int at = 1;

    for (; at < argc && strncmp(argv[at], "--", 2) == 0; at++) {
        const char *name = argv[at], *value = at + 1 < argc ? argv[at + 1] : NULL;
        if (strcmp(name, "--tiny") == 0) {
            settings.tiny = true;
            continue;
        }
        if (strcmp(name, "--list") == 0) {
            list = true;
            continue;
        }
        if (!value)
            return usage(name);
        if (strcmp(name, "--kernels") == 0)
            settings.kernels = value;
        else if (strcmp(name, "--cublas") == 0)
            settings.cublas = value;
        else if (strcmp(name, "--host-bytes") == 0)
            settings.host_bytes = strtoull(value, NULL, 10);
        else if (strcmp(name, "--limit") == 0)
            limit_s = strtod(value, NULL);
        else if (strcmp(name, "--inside") == 0)
            said_file = (int)strtol(value, NULL, 10);
        else
            return usage(name);
        at++;
    }
    if (said_file >= 0)
        return at < argc ? run_inside(argv[at]) : usage("--inside");
    for (int i = at; i < argc; i++) {
        if (!known(argv[i]))
            return usage(argv[i]);
    }
    said_file = memfd_create("probe", 0); /* inherited */
    if (said_file < 0 || ftruncate(said_file, sizeof *said) || !said_map())
        return usage("no memory");
    for (size_t t = 0; t < sizeof tables / sizeof *tables; t++) {
        for (const struct check *check = tables[t]; check->name; check++) {
            double left_s = limit_s - (now_us() - begin) / 1e6;
            if (!wanted(check, argv + at, argc - at))
                continue;
            if (list)
                printf("%s %s\n", check->group, check->name);
            else if (left_s < 3)
                printf("{\"check\": \"%s\", \"group\": \"%s\", \"verdict\": \"left out\", \"why\": \"no time "
                       "was left\"}\n",
                       check->name, check->group);
            else
                well &= run_check(check, left_s < check->limit_s ? left_s : check->limit_s, argv + 1, at - 1);
        }
    }
    return well ? 0 : 1;
}
