/* Included before each source of the library and the tool: files of the system are those of a folder, and waits are counted. */
#ifndef SIMGPU_FUZZ_SYSTEM_H
#define SIMGPU_FUZZ_SYSTEM_H

#define sys_open sys_open_there
#define sys_sleep sys_sleep_there
#define sys_yield sys_yield_there
#include "sys.h"
#undef sys_open
#undef sys_sleep
#undef sys_yield

/* The path of a file of the system in the folder of `pages.h`; other paths are as they are. */
const char *system_path(const char *path);

/* In place of a wait; aborts when an input waits without end. */
void system_wait(void);

static inline int sys_open(const char *path) { return sys_open_there(system_path(path)); }

static inline void sys_sleep(uint64_t nanoseconds)
{
    (void)nanoseconds;
    system_wait();
}

static inline void sys_yield(void) { system_wait(); }

static inline long system_argument(long number, long path)
{
    return number == SYS_faccessat || number == SYS_readlinkat ? (long)system_path((const char *)path) : path;
}

#define sys(number, first, second, ...) sys(number, first, system_argument(number, second), __VA_ARGS__)

#endif
