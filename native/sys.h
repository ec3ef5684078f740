/* System calls without a C library, so that one file serves programs of every C library. */
#ifndef SIMGPU_SYS_H
#define SIMGPU_SYS_H

#include <stddef.h>
#include <stdint.h>

#if defined(__x86_64__)
enum { SYS_read = 0, SYS_write = 1, SYS_close = 3, SYS_lseek = 8, SYS_mmap = 9, SYS_munmap = 11, SYS_sched_yield = 24,
       SYS_nanosleep = 35, SYS_getpid = 39, SYS_socket = 41, SYS_connect = 42, SYS_sendto = 44, SYS_geteuid = 107,
       SYS_getdents64 = 217, SYS_clock_gettime = 228, SYS_openat = 257, SYS_readlinkat = 267, SYS_faccessat = 269, SYS_ppoll = 271 };
static inline long sys(long number, long a, long b, long c, long d, long e, long f)
{
    long result;
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}
#elif defined(__aarch64__)
enum { SYS_faccessat = 48, SYS_openat = 56, SYS_close = 57, SYS_getdents64 = 61, SYS_lseek = 62, SYS_read = 63, SYS_write = 64,
       SYS_ppoll = 73, SYS_readlinkat = 78, SYS_nanosleep = 101, SYS_clock_gettime = 113, SYS_sched_yield = 124,
       SYS_getpid = 172, SYS_geteuid = 175, SYS_socket = 198, SYS_connect = 203, SYS_sendto = 206, SYS_munmap = 215, SYS_mmap = 222 };
static inline long sys(long number, long a, long b, long c, long d, long e, long f)
{
    register long x8 __asm__("x8") = number;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d;
    register long x4 __asm__("x4") = e;
    register long x5 __asm__("x5") = f;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
    return x0;
}
#else
#error "amd64 and arm64 only"
#endif

enum { AT_CWD = -100, OPEN_READ = 0, OPEN_CLOEXEC = 0x80000 };

static inline int sys_open(const char *path) { return (int)sys(SYS_openat, AT_CWD, (long)path, OPEN_READ | OPEN_CLOEXEC, 0, 0, 0); }
static inline long sys_read(int file, void *into, size_t most) { return sys(SYS_read, file, (long)into, (long)most, 0, 0, 0); }
static inline long sys_write(int file, const void *from, size_t many) { return sys(SYS_write, file, (long)from, (long)many, 0, 0, 0); }
static inline void sys_close(int file) { sys(SYS_close, file, 0, 0, 0, 0, 0); }
static inline long sys_size(int file) { return sys(SYS_lseek, file, 0, 2, 0, 0, 0); }
static inline void *sys_map(int file, size_t size) { return (void *)sys(SYS_mmap, 0, (long)size, 1, 1, file, 0); }
static inline void sys_unmap(void *at, size_t size) { sys(SYS_munmap, (long)at, (long)size, 0, 0, 0, 0); }
static inline long sys_list(int file, void *into, size_t most) { return sys(SYS_getdents64, file, (long)into, (long)most, 0, 0, 0); }
static inline int sys_pid(void) { return (int)sys(SYS_getpid, 0, 0, 0, 0, 0, 0); }
static inline void sys_yield(void) { sys(SYS_sched_yield, 0, 0, 0, 0, 0, 0); }
static inline int sys_failed(const void *at) { return (unsigned long)at > (unsigned long)-4096; }

struct moment { int64_t seconds, nanoseconds; };

/* 0 is the time of day, 1 the time that never jumps. */
static inline uint64_t sys_nanoseconds(int which)
{
    struct moment now = {0, 0};
    sys(SYS_clock_gettime, which, (long)&now, 0, 0, 0, 0);
    return (uint64_t)now.seconds * 1000000000u + (uint64_t)now.nanoseconds;
}

static inline void sys_sleep(uint64_t nanoseconds)
{
    struct moment time = {(int64_t)(nanoseconds / 1000000000u), (int64_t)(nanoseconds % 1000000000u)};
    sys(SYS_nanosleep, (long)&time, 0, 0, 0, 0, 0);
}

struct entry { uint64_t inode; int64_t next; uint16_t length; uint8_t type; char name[]; };

static inline size_t text_length(const char *text) { size_t n = 0; while (text[n]) n++; return n; }
static inline int text_equal(const char *a, const char *b) { while (*a && *a == *b) a++, b++; return *a == *b; }
static inline int is_digit(char c) { return c >= '0' && c <= '9'; }

/* Copy text into room for `size` bytes, its end included; whether all of it fitted. */
static inline int text_copy(char *to, const char *from, size_t size)
{
    size_t n = text_length(from), kept = n < size ? n : size ? size - 1 : 0;
    for (size_t i = 0; i < kept; i++) to[i] = from[i];
    if (size) to[kept] = 0;
    return n < size;
}

static inline size_t text_add(char *to, size_t at, const char *from, size_t size)
{
    while (*from && at + 1 < size) to[at++] = *from++;
    if (size) to[at < size ? at : size - 1] = 0;
    return at;
}

static inline size_t text_add_number(char *to, size_t at, uint64_t number, size_t size)
{
    char digits[24];
    size_t n = sizeof digits;
    digits[--n] = 0;
    do digits[--n] = (char)('0' + number % 10); while (number /= 10);
    return text_add(to, at, digits + n, size);
}

#endif
