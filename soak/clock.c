/* Shifts the wall clock of a process by the nanoseconds in a file that others may change: preloaded, it stands before
   the C library. Clocks that count from the machine's start are not shifted: nobody can set those. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *shift;

__attribute__((constructor)) static void open_shift(void)
{
    const char *path = getenv("SIMGPU_SOAK_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *mapped = mmap(NULL, sizeof *shift, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (mapped != MAP_FAILED)
        shift = mapped;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int failed = (int)syscall(SYS_clock_gettime, clock, now);
    if (failed || !shift || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE))
        return failed;
    int64_t total = now->tv_nsec + *shift % 1000000000;
    now->tv_sec += *shift / 1000000000 + (total < 0 ? -1 : total / 1000000000);
    now->tv_nsec = total < 0 ? total + 1000000000 : total % 1000000000;
    return 0;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec exact;
    (void)zone;
    int failed = clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return failed;
}

time_t time(time_t *kept)
{
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (kept)
        *kept = exact.tv_sec;
    return exact.tv_sec;
}
