/* Callers' entries of a function: the words of a loaded object, filled by the dynamic linker, that hold the address of a function of
 * another object: entries of its GOT, and pointers in its data. Private to hooks/. */
#ifndef CASTOR_HOOKS_LOOKUP_GOT_H
#define CASTOR_HOOKS_LOOKUP_GOT_H

/* A function and its replacement for callers. */
typedef struct got_change {
    const char *name; /* as callers import it */
    void *from, *to;
    unsigned written; /* entries that got_rewrite has changed */
} got_change;

/* Makes the changes in every loaded object but this library and the one that `but` lies in (NULL: none): entries that lead to `from`,
 * or will once they are bound, lead to `to` afterwards. Pages that are read-only stay so. */
void got_rewrite(got_change *changes, unsigned count, const void *but);

#endif
