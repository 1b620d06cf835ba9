#include "held.h"

int held_count;
const held_calls *held_now;
