#include "gradient_state.h"

#include "base/error.h"
#include "store/demand.h"

enum { REFUSED = GRADIENT_PHASE_COUNT };

static const uint8_t next_phase[GRADIENT_EVENT_COUNT][GRADIENT_PHASE_COUNT] = {
    [GRADIENT_IS_READY] = {GRADIENT_MADE, GRADIENT_MADE, GRADIENT_ADDED, REFUSED, GRADIENT_MADE,
                           GRADIENT_MADE},
    [GRADIENT_IS_SUBMITTED] = {GRADIENT_JOINED, GRADIENT_ADDED, REFUSED, REFUSED, GRADIENT_JOINED,
                               GRADIENT_ADDED},
    [GRADIENT_IS_COMPLETE] = {REFUSED, REFUSED, GRADIENT_COMPLETE, GRADIENT_COMPLETE, REFUSED, REFUSED},
    [GRADIENT_IS_SHOWN] = {GRADIENT_SUMMED, REFUSED, REFUSED, REFUSED, GRADIENT_SUMMED, REFUSED},
    [GRADIENT_IS_BROKEN_OFF] = {GRADIENT_SUMMED, GRADIENT_LOST, GRADIENT_LOST, GRADIENT_SUMMED, GRADIENT_LOST,
                                GRADIENT_LOST},
};

castor_status gradient_check(const tensor *t, gradient_event event) {
    static const char *const events[] = {"ready", "submitted", "complete", "shown", "broken off"};
    static const char *const phases[] = {"summed", "made", "added", "joined", "complete", "lost"};
    if (next_phase[event][t->gradient.phase] != REFUSED)
        return CASTOR_OK;
    return error_set(CASTOR_ERR_ARGUMENT, "the gradient of tensor %u cannot be %s: it is %s", t->id,
                     events[event], phases[t->gradient.phase]);
}

castor_status gradient_happens(tensor *t, gradient_event event) {
    gradient_state *g = &t->gradient;
    castor_status status = gradient_check(t, event);
    if (status)
        return status;
    g->phase = next_phase[event][g->phase];
    if (event == GRADIENT_IS_SUBMITTED) {
        g->carry = g->carry == GRADIENT_CARRIED ? GRADIENT_CARRYING : GRADIENT_NOT_CARRIED;
        g->elsewhere = false;
    }
    if ((event == GRADIENT_IS_SHOWN || event == GRADIENT_IS_BROKEN_OFF) && g->carry == GRADIENT_CARRYING)
        g->carry = GRADIENT_NOT_CARRIED;
    return CASTOR_OK;
}

bool gradient_is_used(const tensor *t) {
    return t->gradient.phase == GRADIENT_MADE;
}

bool gradient_goes_on(const tensor *t) {
    bool elsewhere = demand_single(t, CHUNK_GRAD) ? demand_elsewhere(t, CHUNK_GRAD) : t->gradient.elsewhere;
    return t->gradient.carry == GRADIENT_CARRIED && !elsewhere;
}

void gradient_carry(tensor *t, bool wanted) {
    gradient_state *g = &t->gradient;
    if (wanted && g->phase == GRADIENT_SUMMED)
        g->carry = GRADIENT_CARRIED;
    else if (g->carry == GRADIENT_CARRIED)
        g->carry = GRADIENT_NOT_CARRIED;
}

void gradient_settle(tensor *t, bool used, int node) {
    t->gradient.elsewhere = used && node != 0;
}
