#include "operands.h"

#include <pthread.h>
#include "blas.h"
#include "events/gate.h"
#include "dnn.h"
#include "rescue.h"
#include "writers.h"

static castor_status outcome;

static void install(void) {
    outcome = gate_arm();
    if (!outcome)
        outcome = rescue_install();
    if (!outcome)
        outcome = writers_install();
    if (!outcome)
        outcome = blas_install();
    if (!outcome)
        outcome = dnn_install();
}

castor_status cuda_operands_install(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, install);
    return outcome;
}
