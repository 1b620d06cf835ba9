#ifndef CASTOR_HOOKS_RESOLVE_H
#define CASTOR_HOOKS_RESOLVE_H

/* Looks up all real functions in the libraries that are loaded by now, names them in the trace and sets the
 * coverage gauges. */
void hooks_resolve(void);

#endif
