/* The version, once: the Makefile, the wheel and the Python part read it from these lines. */
#ifndef CASTOR_CORE_VERSION_H
#define CASTOR_CORE_VERSION_H

#define CASTOR_VERSION "0.1.0"
/* What programs that link the library ask for. Its number grows when a function of castor.h changes or goes. */
#define CASTOR_SONAME "libcastor.so.0"

#endif
