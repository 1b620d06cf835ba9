#include "loss_scale.h"

void loss_scale_begin(loss_scale *s) {
    *s = (loss_scale){.scale = LOSS_SCALE_INITIAL};
}

void loss_scale_overflowed(loss_scale *s) {
    *s = (loss_scale){.scale = s->scale / 2};
}

bool loss_scale_stepped(loss_scale *s) {
    if (++s->good < LOSS_SCALE_STEPS)
        return false;
    s->good = 0;
    if (s->scale >= LOSS_SCALE_LARGEST)
        return false;
    s->scale *= 2;
    return true;
}
