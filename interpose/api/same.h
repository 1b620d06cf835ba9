/* What castor.h shows of the modules' structures and constants under names of its own: they must be the same. Private to api. */
#ifndef CASTOR_API_SAME_H
#define CASTOR_API_SAME_H

#include <stddef.h>

/* `last`: the last member. */
#define SAME(outer, inner, last)                                                                             \
    _Static_assert(sizeof(outer) == sizeof(inner) && offsetof(outer, last) == offsetof(inner, last),         \
                   "one layout, two names")
#define EQUAL(outer, inner) _Static_assert((int)(outer) == (int)(inner), "one value, two names")

#endif
