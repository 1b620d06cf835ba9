#include "victims.h"

static uint32_t child(const victims *v, uint32_t node) {
    return node < v->leaves ? v->winner[node] : node - v->leaves;
}

static void play(victims *v, uint32_t node) {
    uint32_t left = child(v, 2 * node), right = child(v, 2 * node + 1);
    v->winner[node] = v->key[right] > v->key[left] ? right : left;
}

void victims_init(victims *v, uint64_t *key, uint32_t *winner, uint32_t leaves) {
    *v = (victims){key, winner, leaves};
    for (uint32_t node = leaves - 1; node >= 1; node--)
        play(v, node);
}

void victims_set(victims *v, uint32_t chunk, uint64_t key) {
    if (v->key[chunk] == key)
        return;
    v->key[chunk] = key;
    for (uint32_t node = (chunk + v->leaves) / 2; node >= 1; node /= 2)
        play(v, node);
}

uint32_t victims_first(const victims *v) {
    if (v->leaves == 0)
        return VICTIM_NONE;
    uint32_t first = v->leaves > 1 ? v->winner[1] : 0;
    return v->key[first] ? first : VICTIM_NONE;
}
