/* "Did you mean": the known name nearest to a misspelt one. No malloc. */
#ifndef CASTOR_BASE_NEAREST_H
#define CASTOR_BASE_NEAREST_H

#include <stddef.h>

#define NEAREST_FAR 1000u

/* Insertions, deletions, replacements and swaps of neighbours that turn `a` into `b`, letter case aside; a
 * name that contains the other counts as 1 at most. NEAREST_FAR when either is too long to compare. */
size_t nearest_distance(const char *a, size_t a_length, const char *b, size_t b_length);

/* Whether a name at `distance` from a word of `length` characters is worth suggesting: a third of them may differ. */
int nearest_is_near(size_t distance, size_t length);

/* The entry of `names` nearest to `word`, or NULL when none is near. */
const char *nearest_name(const char *word, const char *const *names, size_t count);

#endif
