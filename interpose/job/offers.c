#include "offers.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>
#include "base/error.h"
#include "base/log.h"
#include "base/thread.h"
#include "events/life.h"
#include "rendezvous.h"
#include "token.h"

struct offer {
    offer *next;
    int listener; /* -1: nobody can ask */
    int count;    /* of its descriptors; 0: they are still to come, or are given to nobody any more */
    uint32_t given, takers;
    char token[TOKEN_MAX];
    int descriptors[RENDEZVOUS_DESCRIPTORS];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* All below is guarded by `lock`. */
static offer *offers;
static uint32_t offer_count, open_count;
static bool started;
static int changed = -1; /* an eventfd: the thread polls other sockets from now on */

/* Nobody is answered any more. */
static void offer_close(offer *o) {
    if (o->listener >= 0)
        close(o->listener);
    open_count -= (o->listener >= 0) + (uint32_t)o->count;
    o->listener = -1;
    for (int i = 0; i < o->count; i++)
        close(o->descriptors[i]);
    o->count = 0;
}

static void answer(int listener) {
    for (offer *o = offers; o; o = o->next)
        if (o->listener == listener && o->count) {
            o->given += rendezvous_answer(listener, o->token, o->descriptors, o->count);
            if (o->given >= o->takers)
                offer_close(o);
            return;
        }
}

/* What is to be polled: `changed`, and who can be answered. Returns how many; 0: no memory. */
static nfds_t polled_get(struct pollfd **polled) {
    nfds_t count = 1;
    struct pollfd *grown = realloc(*polled, (offer_count + 1) * sizeof **polled);
    if (!grown)
        return 0;
    *polled = grown;
    grown[0] = (struct pollfd){.fd = changed, .events = POLLIN};
    for (const offer *o = offers; o; o = o->next)
        if (o->count)
            grown[count++] = (struct pollfd){.fd = o->listener, .events = POLLIN};
    return count;
}

static void *answer_main(void *context) {
    (void)context;
    prctl(PR_SET_NAME, "castor-offers");
    struct pollfd *polled = NULL;
    for (;;) {
        pthread_mutex_lock(&lock);
        nfds_t count = polled_get(&polled);
        pthread_mutex_unlock(&lock);
        int ready = count ? poll(polled, count, -1) : -1;
        if (!count)
            sleep(1); /* until there is memory again */
        if (ready <= 0)
            continue;
        uint64_t times;
        if (polled[0].revents && read(changed, &times, sizeof times) < 0)
            continue;
        pthread_mutex_lock(&lock);
        for (nfds_t i = 1; i < count; i++)
            if (polled[i].revents)
                answer(polled[i].fd);
        pthread_mutex_unlock(&lock);
    }
    return NULL;
}

offer *offer_claim(const char *token, const char *name) {
    offer *o = malloc(sizeof *o);
    int listener = o ? rendezvous_listen(token, name) : -1;
    if (listener < 0) {
        free(o);
        return NULL;
    }
    *o = (offer){.listener = listener};
    token_copy(o->token, token);
    pthread_mutex_lock(&lock);
    o->next = offers;
    offers = o;
    offer_count++;
    open_count++;
    pthread_mutex_unlock(&lock);
    return o;
}

static void fork_prepare(void) {
    pthread_mutex_lock(&lock);
}

static void fork_parent(void) {
    pthread_mutex_unlock(&lock);
}

/* The child's only thread is the one that holds the lock. */
static void fork_child(void) {
    while (offers) {
        offer *o = offers;
        offers = o->next;
        offer_close(o);
        free(o);
    }
    offer_count = 0;
    if (changed >= 0)
        close(changed);
    changed = -1;
    started = false;
    pthread_mutex_unlock(&lock);
}

/* The thread looks at all offers. A socket that it polls lives on after it was closed, with who connects to it, until then. */
static bool thread_look(void) {
    return write(changed, &(uint64_t){1}, sizeof(uint64_t)) >= 0 || errno == EAGAIN;
}

/* The thread runs, and looks at all offers. */
static castor_status thread_wake(void) {
    static bool watches_forks;
    if (!watches_forks && life_fork_register(fork_prepare, fork_parent, fork_child))
        return error_set(CASTOR_ERR_MEMORY, "no room for the fork handlers of offers");
    watches_forks = true;
    if (!started) {
        if (changed < 0)
            changed = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        int failed = changed < 0 ? errno : thread_start(answer_main, NULL);
        if (failed)
            return error_set(CASTOR_ERR_SYSTEM, "cannot start the thread castor-offers (error %d)", failed);
        started = true;
    }
    if (!thread_look())
        return error_set(CASTOR_ERR_SYSTEM, "cannot wake the thread castor-offers (errno %d)", errno);
    return CASTOR_OK;
}

castor_status offer_give(offer *o, const int *descriptors, int count, uint32_t takers) {
    bool fits = count > 0 && count <= RENDEZVOUS_DESCRIPTORS;
    pthread_mutex_lock(&lock);
    castor_status status =
        fits ? thread_wake() : error_set(CASTOR_ERR_ARGUMENT, "%d descriptors: out of range", count);
    if (status == CASTOR_OK) {
        memcpy(o->descriptors, descriptors, (size_t)count * sizeof *descriptors);
        o->count = count;
        o->takers = takers;
        open_count += (uint32_t)count;
    } else {
        for (int i = 0; i < count; i++)
            close(descriptors[i]);
    }
    pthread_mutex_unlock(&lock);
    return status;
}

uint32_t offer_end(offer *o) {
    if (!o)
        return 0;
    pthread_mutex_lock(&lock);
    offer **link = &offers;
    while (*link && *link != o)
        link = &(*link)->next;
    uint32_t given = 0;
    if (*link) { /* else it was another process's, before a fork */
        *link = o->next;
        offer_count--;
        offer_close(o);
        if (started && !thread_look())
            LOG_D("castor-offers goes on with its next look");
        given = o->given;
        free(o);
    }
    pthread_mutex_unlock(&lock);
    return given;
}

uint32_t offers_open(void) {
    pthread_mutex_lock(&lock);
    uint32_t open = open_count;
    pthread_mutex_unlock(&lock);
    return open;
}
