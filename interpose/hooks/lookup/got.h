/* Callers' entries of a function: the words of a loaded object, filled by the dynamic linker, through which it
 * calls functions of other objects. Private to hooks/. */
#ifndef CASTOR_HOOKS_LOOKUP_GOT_H
#define CASTOR_HOOKS_LOOKUP_GOT_H

/* A function and its replacement for callers. */
typedef struct got_change {
    const char *name; /* as callers import it */
    void *from, *to;
} got_change;

/* Makes the changes in every loaded object but this library: entries that lead to `from`, or will once they are
 * bound, lead to `to` afterwards. Pages that are read-only stay so. Returns how many entries were written. */
unsigned got_rewrite(const got_change *changes, unsigned count);

#endif
