#include "nearest.h"

#include <stdbool.h>
#include <string.h>

enum { LENGTH_MAX = 64, CONTAINED_MIN = 4, CONTAINED_DISTANCE = 2 };

static char lower(char c) {
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

static bool same(const char *a, const char *b, size_t length) {
    for (size_t i = 0; i < length; i++)
        if (lower(a[i]) != lower(b[i]))
            return false;
    return true;
}

static bool contains(const char *text, size_t text_length, const char *word, size_t word_length) {
    if (word_length < CONTAINED_MIN)
        return false;
    for (size_t i = 0; i + word_length <= text_length; i++)
        if (same(text + i, word, word_length))
            return true;
    return false;
}

static size_t min2(size_t a, size_t b) {
    return a < b ? a : b;
}

size_t nearest_distance(const char *a, size_t a_length, const char *b, size_t b_length) {
    if (a_length > LENGTH_MAX || b_length > LENGTH_MAX)
        return NEAREST_FAR;
    /* Optimal string alignment over three rows: the current one and the two before it. */
    size_t rows[3][LENGTH_MAX + 1];
    for (size_t j = 0; j <= b_length; j++)
        rows[0][j] = j;
    for (size_t i = 1; i <= a_length; i++) {
        size_t *row = rows[i % 3], *above = rows[(i + 2) % 3], *above2 = rows[(i + 1) % 3];
        row[0] = i;
        for (size_t j = 1; j <= b_length; j++) {
            char x = lower(a[i - 1]), y = lower(b[j - 1]);
            row[j] = min2(min2(above[j], row[j - 1]) + 1, above[j - 1] + (x != y));
            if (i > 1 && j > 1 && x == lower(b[j - 2]) && y == lower(a[i - 2]))
                row[j] = min2(row[j], above2[j - 2] + 1);
        }
    }
    size_t distance = rows[a_length % 3][b_length];
    if (distance > CONTAINED_DISTANCE &&
        (contains(a, a_length, b, b_length) || contains(b, b_length, a, a_length)))
        return CONTAINED_DISTANCE;
    return distance;
}

int nearest_is_near(size_t distance, size_t length) {
    enum { SHORT = 5, MIDDLE = 9 };
    return distance < length && distance <= (length < SHORT ? 1 : length < MIDDLE ? 2 : length / 3);
}

const char *nearest_name(const char *word, const char *const *names, size_t count) {
    const char *best = NULL;
    size_t best_distance = NEAREST_FAR, word_length = strlen(word);
    for (size_t i = 0; i < count; i++) {
        size_t distance = nearest_distance(word, word_length, names[i], strlen(names[i]));
        if (distance < best_distance) {
            best_distance = distance;
            best = names[i];
        }
    }
    size_t dashes = strspn(word, "-"); /* these say nothing about what was meant */
    return best && nearest_is_near(best_distance, word_length - dashes) ? best : NULL;
}
