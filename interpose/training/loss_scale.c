#include "loss_scale.h"

void loss_scale_begin(loss_scale *s) {
    *s = (loss_scale){.scale = LOSS_SCALE_INITIAL,
                      .largest = LOSS_SCALE_LARGEST,
                      .growth = 2,
                      .backoff = 0.5,
                      .interval = LOSS_SCALE_STEPS,
                      .hysteresis = 1};
}

void loss_scale_overflowed(loss_scale *s) {
    s->good = 0;
    if (++s->overflows < s->hysteresis)
        return;
    s->scale *= s->backoff;
    if (s->scale < s->smallest)
        s->scale = s->smallest;
}

bool loss_scale_stepped(loss_scale *s) {
    if (++s->good < s->interval)
        return false;
    s->good = s->overflows = 0;
    if (s->scale >= s->largest)
        return false;
    s->scale *= s->growth;
    if (s->scale > s->largest)
        s->scale = s->largest;
    return true;
}
