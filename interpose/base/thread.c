#include "thread.h"

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/mman.h>

typedef char room[THREAD_ROOM_BYTES];

static pthread_once_t key_once = PTHREAD_ONCE_INIT;
static pthread_key_t key;
static bool has_key;
static __thread room *rooms __attribute__((tls_model("initial-exec")));

static void rooms_end(void *memory) {
    rooms = NULL;
    munmap(memory, THREAD_ROOMS * sizeof(room));
}

static void key_make(void) {
    has_key = pthread_key_create(&key, rooms_end) == 0;
}

void *thread_room(thread_room_id id) {
    static room shared[THREAD_ROOMS];
    if (__builtin_expect(rooms != NULL, 1))
        return rooms[id];
    pthread_once(&key_once, key_make);
    void *memory = mmap(NULL, sizeof shared, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return shared[id];
    rooms = memory;
    if (has_key)
        pthread_setspecific(key, memory); /* else the memory stays when the thread ends */
    return rooms[id];
}

int thread_start(void *(*body)(void *), void *context) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_t thread;
    int error = pthread_create(&thread, &attributes, body, context);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return error;
}
