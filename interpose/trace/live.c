#include "live.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>
#include "base/hash.h"
#include "base/log.h"
#include "base/thread.h"
#include "counters.h"
#include "file.h"

#define STACK_PATH_MAX (PATH_MAX + 64)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static live_file *current; /* written under lock, read with acquire */
static bool failed;        /* lock; no file can be made */
static char base_name[64]; /* of its files; written before current */

/* The backend behind each group of the file; written under lock, read without. */
static const void *addresses[LIVE_PROCESS_GROUPS_MAX];

static struct {
    bool known, all;
    unsigned made; /* groups since: a group of several backends, or with one that checks it */
    char name[LIVE_NAME_MAX];
    uint64_t members[LIVE_MEMBER_WORDS];
} announced_none;
static __thread __typeof__(announced_none) announced __attribute__((tls_model("initial-exec")));

static void (*stack_teller)(const char *path); /* atomic */
static uint32_t stack_running;                 /* atomic */

/* The file, made at the first use. A process that has no counters file has no use for this one either. */
static live_file *live_get(void) {
    live_file *file = __atomic_load_n(&current, __ATOMIC_ACQUIRE);
    if (__builtin_expect(file != NULL, 1))
        return file;
    const trace_counters *counters = trace_file_directory()[0] != '\0' ? counters_get() : NULL;
    if (counters == NULL || counters->recording == TRACE_RECORDING_FAILED)
        return NULL;
    int saved_errno = errno;
    pthread_mutex_lock(&lock);
    file = current;
    if (file == NULL && !failed) {
        char name[96], rank[16];
        counters_rank_text(rank);
        log_format(base_name, sizeof base_name, "rank-%s.pid-%u", rank, (unsigned)getpid());
        log_format(name, sizeof name, "%s" LIVE_SUFFIX, base_name);
        file = trace_file_create(name, sizeof *file);
        failed = file == NULL;
        if (file != NULL) {
            file->version = LIVE_VERSION;
            file->file_bytes = sizeof *file;
            file->pid = (uint32_t)getpid();
            file->rank = counters_rank();
            file->process_uid = counters->uid;
            file->start_clock_ticks = counters->start_clock_ticks;
            file->stack_able = __atomic_load_n(&stack_teller, __ATOMIC_RELAXED) != NULL;
            __atomic_store_n(&file->magic, LIVE_MAGIC, __ATOMIC_RELEASE);
            __atomic_store_n(&current, file, __ATOMIC_RELEASE);
        }
    }
    pthread_mutex_unlock(&lock);
    errno = saved_errno;
    return file;
}

void trace_set_rank(int rank) {
    counters_rank_set(rank);
    live_file *file = __atomic_load_n(&current, __ATOMIC_ACQUIRE);
    if (file != NULL)
        __atomic_store_n(&file->rank, rank, __ATOMIC_RELAXED);
}

/* ---- groups ---- */

void live_process_group_announce(const char *name, const int32_t *ranks, size_t count) {
    announced = announced_none;
    announced.known = name != NULL;
    if (name == NULL)
        return;
    counters_copy_text(announced.name, sizeof announced.name, name);
    announced.all = count == 0;
    for (size_t i = 0; i < count; i++)
        if (ranks[i] >= 0 && (uint32_t)ranks[i] < LIVE_MEMBER_WORDS * 64)
            announced.members[ranks[i] / 64] |= UINT64_C(1) << (ranks[i] % 64);
}

static uint32_t group_find(const void *address) {
    for (uint32_t i = 0; i < LIVE_PROCESS_GROUPS_MAX; i++)
        if (__atomic_load_n(&addresses[i], __ATOMIC_ACQUIRE) == address)
            return i;
    return LIVE_PROCESS_GROUP_UNKNOWN;
}

/* `known`: name and members; NULL: unknown. */
static uint32_t group_add(live_file *file, const void *address, int rank, int size,
                          const live_process_group *known) {
    pthread_mutex_lock(&lock);
    uint32_t index = group_find(address);
    for (uint32_t i = 0; i < LIVE_PROCESS_GROUPS_MAX && index == LIVE_PROCESS_GROUP_UNKNOWN; i++)
        if (addresses[i] == NULL)
            index = i;
    if (index != LIVE_PROCESS_GROUP_UNKNOWN) {
        live_process_group *group = &file->groups[index];
        memset(group, 0, sizeof *group);
        group->rank = rank;
        group->size = size > 0 ? (uint32_t)size : 0;
        if (known != NULL) {
            memcpy(group->name, known->name, sizeof group->name);
            memcpy(group->members, known->members, sizeof group->members);
            group->enqueues = known->enqueues;
        }
        __atomic_store_n(&group->used, 1, __ATOMIC_RELEASE);
        __atomic_store_n(&addresses[index], address, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&lock);
    return index;
}

uint64_t live_process_group_made(const void *address, int rank, int size) {
    if (!announced.known || size <= 0)
        return 0;
    live_process_group known = {0};
    if (announced.made++ == 0)
        memcpy(known.name, announced.name, sizeof known.name);
    else
        log_format(known.name, sizeof known.name, "%.48s backend %u", announced.name, announced.made);
    memcpy(known.members, announced.members, sizeof known.members);
    for (uint32_t member = 0; announced.all && member < (uint32_t)size; member++)
        if (member < LIVE_MEMBER_WORDS * 64)
            known.members[member / 64] |= UINT64_C(1) << (member % 64);
    live_file *file = live_get();
    if (file != NULL) {
        /* The script's own rank is that in the group of all. */
        if (announced.all && file->rank < 0)
            trace_set_rank(rank);
        group_add(file, address, rank, size, &known);
    }
    uint64_t seed = hash_bytes((uint64_t)size, known.members, sizeof known.members);
    return hash_bytes(seed, known.name, sizeof known.name);
}

void live_communicator_made(const void *address, uint64_t identity, int rank, int size) {
    live_file *file = address != NULL && identity != 0 ? live_get() : NULL;
    if (file == NULL)
        return;
    live_process_group known = {.enqueues = 1};
    log_format(known.name, sizeof known.name, "%x", (unsigned)(identity >> 32 ^ identity));
    group_add(file, address, rank, size, &known);
}

void live_process_group_ended(const void *address) {
    live_file *file = __atomic_load_n(&current, __ATOMIC_ACQUIRE);
    uint32_t index = file == NULL || address == NULL ? LIVE_PROCESS_GROUP_UNKNOWN : group_find(address);
    if (index == LIVE_PROCESS_GROUP_UNKNOWN)
        return;
    /* Works that its worker threads never ran end with it. */
    for (uint32_t i = 0; i < LIVE_WAITS_MAX; i++)
        if (__atomic_load_n(&file->waits[i].claimed, __ATOMIC_ACQUIRE) && file->waits[i].group == index)
            __atomic_store_n(&file->waits[i].begin_ns, 0, __ATOMIC_RELEASE);
    for (uint32_t i = 0; i < LIVE_CHANNELS_MAX; i++)
        if (file->channels[i].group == index)
            __atomic_store_n(&file->channels[i].direction, 0, __ATOMIC_RELEASE);
    __atomic_store_n(&file->groups[index].used, 0, __ATOMIC_RELEASE);
    __atomic_store_n(&addresses[index], NULL, __ATOMIC_RELEASE);
}

/* ---- waits ---- */

static live_wait *wait_claim(live_file *file) {
    for (uint32_t i = 0; i < LIVE_WAITS_MAX; i++) {
        uint32_t free = 0;
        live_wait *wait = &file->waits[i];
        if (__atomic_load_n(&wait->claimed, __ATOMIC_RELAXED) == 0 &&
            __atomic_compare_exchange_n(&wait->claimed, &free, 1, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
            return wait;
    }
    return NULL;
}

static live_wait *wait_publish(live_wait *wait, live_kind kind, uint32_t group, uint64_t ordinal,
                               const char *what, uint64_t bytes, uint64_t now_ns) {
    wait->kind = (uint32_t)kind;
    wait->group = group;
    wait->ordinal = ordinal;
    wait->bytes = bytes;
    wait->missing_pid = 0;
    counters_copy_text(wait->what, sizeof wait->what, what);
    __atomic_store_n(&wait->begin_ns, now_ns, __ATOMIC_RELEASE);
    return wait;
}

static live_wait *wait_begin(live_file *file, live_kind kind, uint32_t group, uint64_t ordinal,
                             const char *what, uint64_t bytes, uint64_t now_ns) {
    live_wait *wait = wait_claim(file);
    return wait == NULL ? NULL : wait_publish(wait, kind, group, ordinal, what, bytes, now_ns);
}

/* One of several threads that begin collectives of one group at once may come to lack in `recent`. */
static live_wait *begin_collective(const void *address, const char *operation, uint64_t bytes,
                                   uint64_t now_ns, bool enqueued) {
    live_file *file = live_get();
    if (file == NULL)
        return NULL;
    uint32_t index = group_find(address);
    if (index == LIVE_PROCESS_GROUP_UNKNOWN) /* made before the agent was there, or by other means */
        index = group_add(file, address, -1, 0, NULL);
    if (index == LIVE_PROCESS_GROUP_UNKNOWN)
        return wait_begin(file, LIVE_COLLECTIVE, index, 0, operation, bytes, now_ns);
    live_process_group *group = &file->groups[index];
    uint64_t ordinal = __atomic_add_fetch(&group->entered, 1, __ATOMIC_RELAXED);
    if (enqueued) {
        live_recent *recent = &group->recent[ordinal % LIVE_RECENT_MAX];
        counters_copy_text(recent->what, sizeof recent->what, operation);
        recent->begin_ns = now_ns;
        recent->bytes = bytes;
        __atomic_store_n(&recent->ordinal, ordinal, __ATOMIC_RELEASE);
        __atomic_store_n(&group->enqueues, 1, __ATOMIC_RELAXED);
        __atomic_store_n(&group->last_ns, now_ns, __ATOMIC_RELAXED);
    }
    return wait_begin(file, LIVE_COLLECTIVE, index, ordinal, operation, bytes, now_ns);
}

live_wait *live_collective_begin(const void *address, const char *operation, uint64_t bytes,
                                 uint64_t now_ns) {
    return begin_collective(address, operation, bytes, now_ns, false);
}

live_wait *live_collective_enqueue(const void *address, const char *operation, uint64_t bytes,
                                   uint64_t now_ns) {
    return begin_collective(address, operation, bytes, now_ns, true);
}

live_wait *live_wait_begin(live_kind kind, const char *what, uint64_t now_ns) {
    live_file *file = live_get();
    return file == NULL ? NULL : wait_begin(file, kind, LIVE_PROCESS_GROUP_UNKNOWN, 0, what, 0, now_ns);
}

/* ---- messages ---- */

static live_channel *channel_find(live_file *file, const live_message *message, live_direction direction) {
    for (uint32_t i = 0; i < LIVE_CHANNELS_MAX; i++) {
        live_channel *channel = &file->channels[i];
        if (__atomic_load_n(&channel->direction, __ATOMIC_ACQUIRE) == (uint32_t)direction &&
            channel->group == message->group && channel->peer == message->peer &&
            channel->tag == message->tag)
            return channel;
    }
    return NULL;
}

static live_channel *channel_add(live_file *file, const live_message *message, live_direction direction) {
    pthread_mutex_lock(&lock);
    live_channel *channel = channel_find(file, message, direction);
    for (uint32_t i = 0; i < LIVE_CHANNELS_MAX && channel == NULL; i++)
        if (file->channels[i].direction == 0) {
            channel = &file->channels[i];
            *channel = (live_channel){.group = message->group, .peer = message->peer, .tag = message->tag};
            __atomic_store_n(&channel->direction, (uint32_t)direction, __ATOMIC_RELEASE);
        }
    if (channel == NULL)
        file->channels_lost = 1;
    pthread_mutex_unlock(&lock);
    return channel;
}

live_message live_message_begin(const void *address, live_direction direction, int peer, int tag,
                                bool enqueued, uint64_t now_ns) {
    live_message message = {LIVE_PROCESS_GROUP_UNKNOWN, peer, enqueued ? 0 : tag, 0};
    live_file *file = live_get();
    if (file == NULL || (message.group = group_find(address)) == LIVE_PROCESS_GROUP_UNKNOWN)
        return message;
    live_process_group *group = &file->groups[message.group];
    if (enqueued) {
        __atomic_store_n(&group->enqueues, 1, __ATOMIC_RELAXED);
        __atomic_store_n(&group->last_ns, now_ns, __ATOMIC_RELAXED);
    }
    if (peer < 0 || group->name[0] == '\0')
        return message;
    live_channel *channel = channel_find(file, &message, direction);
    if (channel == NULL)
        channel = channel_add(file, &message, direction);
    if (channel != NULL)
        message.ordinal = __atomic_add_fetch(&channel->begun, 1, __ATOMIC_RELAXED);
    return message;
}

live_wait *live_receive_begin(const live_message *message, const char *what, uint64_t now_ns) {
    live_file *file = live_get();
    live_wait *wait = file == NULL ? NULL : wait_claim(file);
    if (wait == NULL)
        return NULL;
    wait->peer = message->peer;
    wait->tag = message->tag;
    return wait_publish(wait, LIVE_RECEIVE, message->group, message->ordinal, what, 0, now_ns);
}

/* ---- waits that change ---- */

void live_wait_missing(live_wait *wait, int pid) {
    if (wait != NULL)
        __atomic_store_n(&wait->missing_pid, pid, __ATOMIC_RELAXED);
}

void live_wait_end(live_wait *wait) {
    if (wait == NULL)
        return;
    __atomic_store_n(&wait->begin_ns, 0, __ATOMIC_RELEASE);
    __atomic_store_n(&wait->claimed, 0, __ATOMIC_RELEASE);
}

/* ---- devices ---- */

void live_device_set(const live_device *device) {
    live_file *file = device->begin_ns != 0 ? live_get() : __atomic_load_n(&current, __ATOMIC_ACQUIRE);
    if (file == NULL || memcmp(&file->device, device, sizeof *device) == 0)
        return; /* a reader sees no moment without a wait that goes on */
    live_device next = *device;
    next.begin_ns = 0;
    __atomic_store_n(&file->device.begin_ns, 0, __ATOMIC_RELEASE);
    file->device = next;
    __atomic_store_n(&file->device.begin_ns, device->begin_ns, __ATOMIC_RELEASE);
}

/* ---- the Python stack ---- */

static void *stack_main(void *unused) {
    (void)unused;
    prctl(PR_SET_NAME, "castor-stack");
    live_file *file = __atomic_load_n(&current, __ATOMIC_ACQUIRE);
    void (*tell)(const char *) = __atomic_load_n(&stack_teller, __ATOMIC_ACQUIRE);
    static char path[STACK_PATH_MAX]; /* one such thread at a time */
    log_format(path, sizeof path, "%s/%s" LIVE_STACK_SUFFIX, trace_file_directory(), base_name);
    uint32_t wanted = __atomic_load_n(&file->stack_wanted, __ATOMIC_ACQUIRE);
    if (tell != NULL)
        tell(path);
    __atomic_store_n(&file->stack_given, wanted, __ATOMIC_RELEASE);
    __atomic_store_n(&stack_running, 0, __ATOMIC_RELEASE);
    return NULL;
}

void live_stack_teller_set(void (*tell)(const char *path)) {
    __atomic_store_n(&stack_teller, tell, __ATOMIC_RELEASE);
    live_file *file = __atomic_load_n(&current, __ATOMIC_ACQUIRE);
    if (file != NULL)
        __atomic_store_n(&file->stack_able, tell != NULL, __ATOMIC_RELEASE);
}

void live_stack_update(void) {
    live_file *file = __atomic_load_n(&current, __ATOMIC_ACQUIRE);
    if (file == NULL || !__atomic_load_n(&file->stack_able, __ATOMIC_RELAXED) ||
        __atomic_load_n(&file->stack_wanted, __ATOMIC_ACQUIRE) ==
            __atomic_load_n(&file->stack_given, __ATOMIC_ACQUIRE) ||
        __atomic_exchange_n(&stack_running, 1, __ATOMIC_ACQUIRE))
        return;
    /* Its own thread: where the script holds the interpreter for long, the sampler goes on meanwhile. */
    if (thread_start(stack_main, NULL) != 0)
        __atomic_store_n(&stack_running, 0, __ATOMIC_RELEASE);
}

void live_reset(void) {
    pthread_mutex_init(&lock, NULL);
    failed = false;
    memset(addresses, 0, sizeof addresses);
    announced = announced_none;
    __atomic_store_n(&stack_running, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&current, NULL, __ATOMIC_RELEASE);
}
