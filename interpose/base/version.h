/* The version, once: the Makefile, the wheel and the Python part read it from these lines. */
#ifndef CASTOR_BASE_VERSION_H
#define CASTOR_BASE_VERSION_H

#define CASTOR_VERSION "0.1.0"
/* The name by which linked programs load the library. Its number grows when a function of castor.h changes or is removed. */
#define CASTOR_SONAME "libcastor.so.0"

#endif
