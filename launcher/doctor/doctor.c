#include "doctor.h"
#include <errno.h>
#include <fcntl.h>
#include <gnu/libc-version.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>
#include "base/log.h"
#include "base/machine.h"
#include "launcher/common/command_line.h"
#include "launcher/common/limits.h"
#include "launcher/common/text_table.h"
#include "launcher/run/run.h"

#define SECTION_MACHINE "Machine"
#define SECTION_MEMORY  "Memory"
#define SECTION_ABLE    "What the kernel lets Castor do"

#define MAPS_WANTED 65530 /* the kernel's own default */
#define GIB         (UINT64_C(1) << 30)

/* ---- machine ---- */

static void check_machine(doctor_checks *checks) {
    struct utsname system;
    unsigned major = 0, minor = 0;
    const char *libc = gnu_get_libc_version();
    if (uname(&system) == 0) {
        bool known = strcmp(system.machine, "x86_64") == 0;
        doctor_add(checks, SECTION_MACHINE, "system", known ? DOCTOR_OK : DOCTOR_WARN, "%s %s, %s",
                   system.sysname, system.release, system.machine);
        if (!known)
            doctor_advise(checks,
                          "Castor is developed on x86-64; collectives of gloo are not seen elsewhere");
    }
    sscanf(libc, "%u.%u", &major, &minor);
    bool old = major < 2 || (major == 2 && minor < 28);
    doctor_add(checks, SECTION_MACHINE, "glibc", old ? DOCTOR_FAIL : DOCTOR_OK, "%s", libc);
    if (old)
        doctor_advise(checks, "Castor needs glibc 2.28 or later: a newer system, or a container with one");
    unsigned long usable = machine_cores_usable();
    double limit = limit_cores_given();
    if (limit > 0 && limit < (double)usable)
        doctor_add(checks, SECTION_MACHINE, "cores", DOCTOR_OK, "%lu, of which a control group gives %.1f",
                   usable, limit);
    else
        doctor_add(checks, SECTION_MACHINE, "cores", DOCTOR_OK, "%lu", usable);
}

/* ---- memory ---- */

static void check_memory(doctor_checks *checks) {
    uint64_t total = 0, available = 0, value, committed;
    char a[TEXT_FIGURE_MAX], b[TEXT_FIGURE_MAX];
    if (machine_meminfo("", "MemTotal", &total) && machine_meminfo("", "MemAvailable", &available)) {
        bool little = available < GIB;
        doctor_add(checks, SECTION_MEMORY, "memory", little ? DOCTOR_WARN : DOCTOR_OK,
                   "%s, of which %s available", text_bytes(a, total), text_bytes(b, available));
        if (little)
            doctor_advise(checks, "a process with PyTorch alone takes about 0.3 GiB: end other programs");
    } else
        doctor_add(checks, SECTION_MEMORY, "memory", DOCTOR_WARN, "/proc/meminfo cannot be read");
    uint64_t limit = limit_memory_bytes();
    if (limit > 0 && (total == 0 || limit < total)) {
        doctor_add(checks, SECTION_MEMORY, "control group", limit < GIB ? DOCTOR_WARN : DOCTOR_OK,
                   "at most %s", text_bytes(a, limit));
        if (limit < GIB)
            doctor_advise(checks, "give the container more memory");
    } else
        doctor_add(checks, SECTION_MEMORY, "control group", DOCTOR_OK, "no limit");
    struct rlimit space;
    if (getrlimit(RLIMIT_AS, &space) == 0 && space.rlim_cur != RLIM_INFINITY) {
        doctor_add(checks, SECTION_MEMORY, "ulimit -v", DOCTOR_WARN, "%s", text_bytes(a, space.rlim_cur));
        doctor_advise(checks,
                      "Castor reserves address space ahead of its use: ulimit -v unlimited, or a limit of a "
                      "control group, which counts memory instead");
    } else
        doctor_add(checks, SECTION_MEMORY, "ulimit -v", DOCTOR_OK, "unlimited");
    if (machine_read_number("", "/proc/sys/vm/overcommit_memory", &value)) {
        static const char *const names[] = {"0 (heuristic)", "1 (always)", "2 (never)"};
        bool strict = value == 2;
        doctor_add(checks, SECTION_MEMORY, "overcommit", strict ? DOCTOR_WARN : DOCTOR_OK, "%s",
                   value < 3 ? names[value] : "unknown");
        if (strict && machine_meminfo("", "CommitLimit", &value) &&
            machine_meminfo("", "Committed_AS", &committed))
            doctor_advise(checks,
                          "each rank's private view of the parameters counts in full; %s are left of %s: "
                          "sysctl vm.overcommit_memory=0",
                          text_bytes(a, value > committed ? value - committed : 0), text_bytes(b, value));
    }
    if (machine_read_number("", "/proc/sys/vm/max_map_count", &value)) {
        doctor_add(checks, SECTION_MEMORY, "vm.max_map_count", value < MAPS_WANTED ? DOCTOR_WARN : DOCTOR_OK,
                   "%llu", (unsigned long long)value);
        if (value < MAPS_WANTED)
            doctor_advise(checks, "each parameter takes several mappings: sysctl vm.max_map_count=262144");
    }
    struct rlimit size;
    if (getrlimit(RLIMIT_FSIZE, &size) == 0 && size.rlim_cur != RLIM_INFINITY) {
        doctor_add(checks, SECTION_MEMORY, "ulimit -f", DOCTOR_WARN, "%s", text_bytes(a, size.rlim_cur));
        doctor_advise(checks, "chunks are files in memory, which this limits: ulimit -f unlimited");
    }
}

/* ---- abilities ---- */

/* A file in memory, sealed, mapped shared and private, as the store's chunks are. Returns what fails, or NULL. */
static const char *try_memfd(void) {
    const char *failed = NULL;
    size_t bytes = 1 << 16;
    int fd = memfd_create("castor-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return "memfd_create";
    char *shared = MAP_FAILED, *private_view = MAP_FAILED;
    if (ftruncate(fd, (off_t)bytes) != 0)
        failed = "ftruncate";
    else if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0)
        failed = "F_ADD_SEALS";
    else if ((shared = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)) == MAP_FAILED)
        failed = "mmap, shared,";
    else if ((private_view = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0)) == MAP_FAILED)
        failed = "mmap, private,";
    else {
        shared[0] = 1;
        int saved = private_view[0] == 1 ? 0 : EIO;
        private_view[0] = 2;
        if (saved || shared[0] != 1) {
            errno = EIO;
            failed = "copy-on-write";
        }
    }
    int saved_errno = errno;
    if (shared != MAP_FAILED)
        munmap(shared, bytes);
    if (private_view != MAP_FAILED)
        munmap(private_view, bytes);
    close(fd);
    errno = saved_errno;
    return failed;
}

static bool try_futex(void) {
    uint32_t word = 1;
    struct timespec moment = {0, 1000000};
    return syscall(SYS_futex, &word, FUTEX_WAIT, 1, &moment, NULL, 0) < 0 && errno == ETIMEDOUT &&
           syscall(SYS_futex, &word, FUTEX_WAKE, 1, NULL, NULL, 0) == 0;
}

/* The ranks of a node meet at an abstract address. */
static bool try_socket(void) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int length =
        snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "castor-doctor-%d", (int)getpid());
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool done = fd >= 0 &&
                bind(fd, (struct sockaddr *)&address,
                     (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length)) == 0 &&
                listen(fd, 1) == 0;
    int saved_errno = errno;
    if (fd >= 0)
        close(fd);
    errno = saved_errno;
    return done;
}

static void check_abilities(doctor_checks *checks) {
    const char *failed = try_memfd();
    if (failed == NULL)
        doctor_add(checks, SECTION_ABLE, "files in memory", DOCTOR_OK, "memfd_create, seals, copy-on-write");
    else {
        doctor_add(checks, SECTION_ABLE, "files in memory", DOCTOR_FAIL, "%s: %s", failed, strerror(errno));
        doctor_advise(checks, "a sandbox or an old kernel forbids it; Castor keeps its chunks there");
    }
    if (try_futex())
        doctor_add(checks, SECTION_ABLE, "futex", DOCTOR_OK, "waits and wakes");
    else {
        doctor_add(checks, SECTION_ABLE, "futex", DOCTOR_FAIL, "%s", strerror(errno));
        doctor_advise(checks, "a sandbox forbids it; ranks wait for each other with it");
    }
    if (try_socket())
        doctor_add(checks, SECTION_ABLE, "sockets", DOCTOR_OK, "abstract Unix addresses");
    else {
        doctor_add(checks, SECTION_ABLE, "sockets", DOCTOR_FAIL, "abstract Unix addresses: %s",
                   strerror(errno));
        doctor_advise(checks, "a sandbox forbids them; the ranks of a machine find each other by one");
    }
    uint64_t entry;
    int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    bool pagemap = fd >= 0 && pread(fd, &entry, sizeof entry, (off_t)((uintptr_t)&entry / 4096 * 8)) == 8;
    if (fd >= 0)
        close(fd);
    doctor_add(checks, SECTION_ABLE, "pagemap", pagemap ? DOCTOR_OK : DOCTOR_WARN, "%s",
               pagemap ? "/proc/self/pagemap" : "/proc/self/pagemap cannot be read");
    if (!pagemap)
        doctor_advise(checks,
                      "which pages a rank has written is not known then: steps copy more than they must");
    bool sizes = access("/proc/self/smaps_rollup", R_OK) == 0;
    doctor_add(checks, SECTION_ABLE, "set sizes", sizes ? DOCTOR_OK : DOCTOR_NOTE, "%s",
               sizes ? "/proc/self/smaps_rollup" : "no /proc/self/smaps_rollup: reports have no PSS");
}

static void doctor_machine(doctor_checks *checks) {
    check_machine(checks);
    check_memory(checks);
    check_abilities(checks);
}

#define LIMIT_SECONDS     180 /* a first import of PyTorch from a slow disk takes a minute */
#define LIMIT_MAX_SECONDS 86400

int doctor_main(int argc, char **argv) {
    void (*write_checks)(const doctor_checks *, FILE *) = doctor_checks_text;
    char *const *command = NULL;
    double limit_seconds = LIMIT_SECONDS;
    command_line line = {SUBCOMMAND_doctor, argc, argv, 1, NULL};
    for (bool more = true; more;) {
        char *end;
        switch (command_line_next(&line)) {
        case ARGUMENT_doctor_format:
            write_checks = strcmp(line.value, "json") == 0 ? doctor_checks_json : doctor_checks_text;
            break;
        case ARGUMENT_doctor_timeout:
            limit_seconds = strtod(line.value, &end);
            if (end == line.value || *end != '\0' || !(limit_seconds > 0) ||
                limit_seconds > LIMIT_MAX_SECONDS) {
                LOG_E("doctor: --timeout `%s`: must be seconds, up to %d", line.value, LIMIT_MAX_SECONDS);
                return RUN_EXIT_USAGE;
            }
            break;
        case COMMAND_LINE_HELP:
            command_help_write(line.command, stdout);
            return 0;
        case COMMAND_LINE_REST:
            if (line.next >= argc) {
                LOG_E("doctor: a Python is missing after --: castor doctor -- PYTHON");
                return RUN_EXIT_USAGE;
            }
            command = argv + line.next;
            more = false;
            break;
        case COMMAND_LINE_WORD:
            LOG_E("doctor: %s: unknown argument; put -- before a Python: castor doctor -- PYTHON",
                  line.value);
            return RUN_EXIT_USAGE;
        case COMMAND_LINE_WRONG:
            return RUN_EXIT_USAGE;
        default:
            more = false;
        }
    }
    doctor_checks checks = {0};
    doctor_machine(&checks);
    doctor_python(&checks, command, limit_seconds);
    int status = doctor_checks_count(&checks, DOCTOR_FAIL) > 0;
    if (checks.failed) {
        LOG_E("out of memory");
        status = RUN_EXIT_SYSTEM;
    } else {
        write_checks(&checks, stdout);
        if (fflush(stdout) != 0) {
            LOG_E("standard output cannot be written");
            status = RUN_EXIT_SYSTEM;
        }
    }
    doctor_checks_free(&checks);
    return status;
}
