/* C++'s exceptions, thrown by the C++ library of the process. Private to hooks/. */
#ifndef CASTOR_HOOKS_GLOO_THROW_H
#define CASTOR_HOOKS_GLOO_THROW_H

#include <stdbool.h>

/* Looks up the function that throws. Without it nothing may be replaced. */
void gloo_throw_resolve(void);
bool gloo_throw_found(void);

/* Throws std::runtime_error with this text. Only after gloo_throw_found has returned true; it does not return. */
void gloo_throw(const char *text);

#endif
