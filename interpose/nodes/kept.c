#include "kept.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include "base/clock.h"
#include "base/error.h"
#include "base/interrupt.h"
#include "device/devices.h"
#include "events/gate.h"
#include "serve.h"

/* The first word of an answer: the bytes that follow, or why there are none. */
#define LATER (UINT64_MAX - 1) /* ask again */
#define GONE  UINT64_MAX       /* never: there is no such range, or a newer version */

#define PIECE_BYTES ((size_t)4 << 20) /* that go from the device to the host at a time */
#define ASK_NS      200000l           /* between two questions, at first */
#define ASK_MOST_NS 20000000l

/* What a version is made of. */
typedef struct edition {
    uint64_t version; /* 0: there is none */
    void *directory;
    size_t directory_bytes;
    kept_range *ranges;
    uint32_t count;
    uint64_t event; /* after which it can be read; 0: none was made. It stays when the edition ends */
} edition;

typedef struct kept {
    struct kept *next; /* never freed: as many as a process has optimizers and models */
    uint64_t name;
    bool shown;
    unsigned readers, drops;
    int device;
    edition last, before;
} kept;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t read_over = PTHREAD_COND_INITIALIZER;
static kept *all; /* guarded by `lock`, with what they hold */

static kept *find(uint64_t name) {
    kept *k = all;
    while (k && k->name != name)
        k = k->next;
    return k;
}

/* ---- the owner's side ---- */

static kept *find_or_make(uint64_t name) {
    kept *k = find(name);
    if (!k && (k = calloc(1, sizeof *k))) {
        k->name = name;
        k->next = all;
        all = k;
    }
    return k;
}

static void edition_end(edition *e) {
    free(e->directory);
    free(e->ranges);
    *e = (edition){.event = e->event};
}

static castor_status edition_make(edition *out, uint64_t version, const void *directory,
                                  size_t directory_bytes, const kept_range *ranges, uint32_t count) {
    *out = (edition){.version = version,
                     .directory = malloc(directory_bytes ? directory_bytes : 1),
                     .directory_bytes = directory_bytes,
                     .ranges = malloc((count ? count : 1) * sizeof *ranges),
                     .count = count};
    if (!out->directory || !out->ranges) {
        edition_end(out);
        return error_set(CASTOR_ERR_MEMORY, "no memory for a directory of %u ranges", count);
    }
    memcpy(out->directory, directory, directory_bytes);
    memcpy(out->ranges, ranges, count * sizeof *ranges);
    return CASTOR_OK;
}

/* Takes `made`, unless it fails. */
static castor_status show_locked(kept *k, edition *made, int device, uint64_t stream, bool lasts) {
    const device_driver *driver = devices_driver();
    if (!driver)
        return error_set(CASTOR_ERR_ARGUMENT, "device %d was not started", device);
    bool next = k->last.version != made->version;
    uint64_t *event = next ? &k->before.event : &k->last.event;
    castor_status status = *event ? CASTOR_OK : driver->event_make(driver->context, device, event);
    if (!status)
        status = driver->event_record(driver->context, device, *event, stream);
    if (status)
        return status;
    k->device = device;
    made->event = *event;
    if (next) {
        edition_end(&k->before);
        k->before = k->last;
        if (!lasts)
            edition_end(&k->before);
    } else {
        edition_end(&k->last);
    }
    k->last = *made;
    *made = (edition){0};
    k->shown = true;
    return CASTOR_OK;
}

castor_status kept_show(uint64_t name, uint64_t version, bool lasts, int device, uint64_t stream,
                        const void *directory, size_t directory_bytes, const kept_range *ranges,
                        uint32_t count) {
    edition made;
    castor_status status = edition_make(&made, version, directory, directory_bytes, ranges, count);
    if (status)
        return status;
    pthread_mutex_lock(&lock);
    kept *k = find_or_make(name);
    while (k && k->readers)
        pthread_cond_wait(&read_over, &lock);
    status = k ? show_locked(k, &made, device, stream, lasts) : error_set(CASTOR_ERR_MEMORY, "no memory");
    pthread_mutex_unlock(&lock);
    edition_end(&made); /* unless it was taken */
    return status;
}

void kept_hide(uint64_t name) {
    pthread_mutex_lock(&lock);
    kept *k = find(name);
    if (k)
        k->shown = false;
    while (k && k->readers)
        pthread_cond_wait(&read_over, &lock);
    pthread_mutex_unlock(&lock);
}

unsigned kept_drops(uint64_t name) {
    pthread_mutex_lock(&lock);
    const kept *k = find(name);
    unsigned drops = k ? k->drops : 0;
    pthread_mutex_unlock(&lock);
    return drops;
}

void kept_end(uint64_t name) {
    kept_hide(name);
    pthread_mutex_lock(&lock);
    kept *k = find(name);
    if (k) {
        edition_end(&k->last);
        edition_end(&k->before);
        k->last.version = UINT64_MAX; /* whatever is asked for is gone */
    }
    pthread_mutex_unlock(&lock);
}

/* ---- answers, in the thread castor-serve ---- */

static bool send_all(int connection, const void *from, size_t bytes) {
    for (const char *at = from; bytes > 0;) {
        ssize_t sent = send(connection, at, bytes, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent <= 0)
            return false;
        at += sent;
        bytes -= (size_t)sent;
    }
    return true;
}

/* What an answer begins with, of a request for `bytes`; called with the lock held. *from: the edition that has it. */
static uint64_t verdict(const kept *k, const serve_request *request, const edition **from) {
    if (!k || request->version > k->last.version)
        return LATER;
    const edition *e = request->version == k->last.version     ? &k->last
                       : request->version == k->before.version ? &k->before
                                                               : NULL;
    if (!e)
        return GONE;
    const device_driver *driver = devices_driver();
    if ((e == &k->last && !k->shown) || !driver->event_done(driver->context, e->event))
        return LATER;
    *from = e;
    if (request->what == SERVE_KEPT_DIRECTORY)
        return e->directory_bytes;
    if (request->range < e->count && request->bytes == e->ranges[request->range].bytes)
        return request->bytes;
    return GONE;
}

/* Homes may be on their way to the host: not inside of the gate. */
static bool piece_send(const kept *k, int connection, uint64_t address, char *piece, size_t bytes) {
    const device_driver *driver = devices_driver();
    gate_enter();
    castor_status status =
        driver->copy(driver->context, k->device, (uintptr_t)piece, (uintptr_t)address, bytes);
    gate_leave();
    return !status && send_all(connection, piece, bytes);
}

static bool range_send(const kept *k, const edition *from, int connection, const serve_request *request) {
    char *piece = malloc(PIECE_BYTES);
    uint64_t sent = 0;
    while (piece && sent < request->bytes) {
        size_t bytes = request->bytes - sent < PIECE_BYTES ? (size_t)(request->bytes - sent) : PIECE_BYTES;
        if (!piece_send(k, connection, from->ranges[request->range].address + sent, piece, bytes))
            break;
        sent += bytes;
    }
    free(piece);
    return sent == request->bytes;
}

static bool drop_note(int connection, uint64_t name) {
    pthread_mutex_lock(&lock);
    kept *k = find_or_make(name);
    if (k)
        k->drops++;
    pthread_mutex_unlock(&lock);
    return send_all(connection, &(uint64_t){0}, sizeof(uint64_t));
}

static bool answer(void *context, int connection, const serve_request *request) {
    (void)context;
    if (request->what == SERVE_KEPT_DROP)
        return drop_note(connection, request->name);
    if (request->what != SERVE_KEPT_DIRECTORY && request->what != SERVE_KEPT)
        return false;
    pthread_mutex_lock(&lock);
    kept *k = find(request->name);
    const edition *from = NULL;
    uint64_t said = verdict(k, request, &from);
    bool reads = said < LATER;
    if (reads)
        k->readers++;
    pthread_mutex_unlock(&lock);
    bool good = send_all(connection, &said, sizeof said);
    if (!reads)
        return good;
    if (good)
        good = request->what == SERVE_KEPT ? range_send(k, from, connection, request)
                                           : send_all(connection, from->directory, from->directory_bytes);
    pthread_mutex_lock(&lock);
    k->readers--;
    pthread_cond_broadcast(&read_over);
    pthread_mutex_unlock(&lock);
    return good;
}

castor_status kept_serve(const char *token, const char *address, int *port) {
    static int known; /* guarded by `lock` */
    pthread_mutex_lock(&lock);
    castor_status status = CASTOR_OK;
    if (!known)
        status = serve_source_start(&(serve_source){answer, NULL}, token, address, &known);
    *port = known;
    pthread_mutex_unlock(&lock);
    return status;
}

/* ---- the reader's side ---- */

/* Asks until there is an answer; *bytes: what follows. */
static castor_status ask(fetch_peer *p, serve_request request, uint64_t *bytes) {
    double until = clock_seconds() + p->timeout_seconds;
    for (long pause = ASK_NS;; pause = pause < ASK_MOST_NS ? 2 * pause : pause) {
        castor_status status = fetch_ask(p, &request);
        if (!status)
            status = fetch_receive(p, bytes, sizeof *bytes);
        if (status || *bytes < LATER)
            return status;
        if (*bytes == GONE)
            return error_set(CASTOR_ERR_PEER,
                             "the rank at %s, port %d, has no such states or gradients any more", p->address,
                             p->port);
        if (interrupt_arrived())
            return error_set(CASTOR_ERR_INTERRUPTED,
                             "interrupted by a signal while another rank's states came");
        if (clock_seconds() >= until)
            return error_set(CASTOR_ERR_TIMEOUT,
                             "the rank at %s, port %d, did not come to its step or the end of its backward "
                             "for %.0f s: raise CASTOR_TIMEOUT",
                             p->address, p->port, p->timeout_seconds);
        nanosleep(&(struct timespec){0, pause}, NULL);
    }
}

castor_status kept_directory(fetch_peer *p, uint64_t name, uint64_t version, void **out, uint64_t *bytes) {
    serve_request request = {.what = SERVE_KEPT_DIRECTORY, .name = name, .version = version};
    *out = NULL;
    castor_status status = ask(p, request, bytes);
    if (status)
        return status;
    *out = malloc(*bytes ? *bytes : 1);
    status = *out ? fetch_receive(p, *out, *bytes)
                  : error_set(CASTOR_ERR_MEMORY, "no memory for a directory of optimizer states");
    if (status) {
        free(*out);
        *out = NULL;
    }
    return status;
}

castor_status kept_read(fetch_peer *p, uint64_t name, uint64_t version, uint32_t range, void *out,
                        uint64_t bytes) {
    serve_request request = {
        .what = SERVE_KEPT, .bytes = bytes, .name = name, .version = version, .range = range};
    uint64_t coming;
    castor_status status = ask(p, request, &coming);
    return status ? status : fetch_receive(p, out, coming);
}

castor_status kept_drop(fetch_peer *p, uint64_t name) {
    uint64_t nothing;
    return ask(p, (serve_request){.what = SERVE_KEPT_DROP, .name = name}, &nothing);
}
