/* The program's environment, as far as its C library is there to ask for it. */
#ifndef SIMGPU_ENVIRONMENT_H
#define SIMGPU_ENVIRONMENT_H

#ifdef FREESTANDING
extern char *getenv(const char *) __attribute__((weak)); /* that of the program's C library, where it has one */
static inline const char *environment(const char *name) { return getenv != 0 ? getenv(name) : 0; }
#else
#include <stdlib.h>
static inline const char *environment(const char *name) { return getenv(name); }
#endif

#endif
