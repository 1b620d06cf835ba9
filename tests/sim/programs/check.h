/* A test program in C: functions that check, and the lines that run.py reads. */
#ifndef SIM_PROGRAMS_CHECK_H
#define SIM_PROGRAMS_CHECK_H

#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cuda.h>

static char check_why[256];

/* Ends the test, which is a function that returns whether all was well. */
#define CHECK(condition)                                                                                     \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            snprintf(check_why, sizeof check_why, "line %d: %s", __LINE__, #condition);                      \
            return false;                                                                                    \
        }                                                                                                    \
    } while (0)
#define GIVES(call, expected)                                                                                \
    do {                                                                                                     \
        CUresult given = (call);                                                                             \
        if (given != (expected)) {                                                                           \
            snprintf(check_why, sizeof check_why, "line %d: %s gives %d", __LINE__, #call, (int)given);      \
            return false;                                                                                    \
        }                                                                                                    \
    } while (0)
#define WORKS(call) GIVES(call, CUDA_SUCCESS)

static sigjmp_buf check_fault;

static void on_fault(int signal) {
    (void)signal;
    siglongjmp(check_fault, 1);
}

/* Whether reading there faults. */
static inline bool faults(const void *address) {
    struct sigaction action = {.sa_handler = on_fault}, before;
    volatile bool faulted = true;

    sigaction(SIGSEGV, &action, &before);
    if (!sigsetjmp(check_fault, 1)) {
        (void)*(const volatile char *)address;
        faulted = false;
    }
    sigaction(SIGSEGV, &before, NULL);
    return faulted;
}

/* A host function that holds its stream until the gate is opened. */
static inline void gate_wait(void *gate) {
    while (sem_wait(gate))
        continue;
}

static inline double seconds(void) {
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static inline int check_run(const char *name, bool (*test)(void)) {
    bool well = test();

    if (well)
        printf("ok %s\n", name);
    else
        printf("FAIL %s: %s\n", name, check_why);
    fflush(stdout);
    return !well;
}
#define RUN(test) check_run(#test, test)

/* The primary context of the first device, current. */
static inline CUcontext check_context(void) {
    CUcontext ctx = NULL;

    if (cuInit(0) || cuDevicePrimaryCtxRetain(&ctx, 0) || cuCtxSetCurrent(ctx))
        return NULL;
    return ctx;
}

#endif
