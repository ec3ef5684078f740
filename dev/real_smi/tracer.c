/* A libnvidia-ml.so.1 in front of another one: passes every call on, and writes it down with its code.
 *
 * TRACE_LIBRARY is the other one, TRACE_FILE what is written to, TRACE_DUMP the slots of the private table whose arguments
 * are followed, such as 12,75; TRACE_PAINT, "argument:offset:number", puts a number into what they answered. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* More arguments than any of these functions has: the rest is what happens to lie on the stack. */
enum { ARGUMENTS = 12, DUMPED = 512, MAX_SLOTS = 1024 };
#define TAKEN long a, long b, long c, long d, long e, long f, long g, long h, long i, long j, long k, long l
#define PASSED a, b, c, d, e, f, g, h, i, j, k, l
typedef long (*function)(TAKEN);

static void note(const char *format, ...)
{
    static int file = -1;
    if (file < 0) file = open(getenv("TRACE_FILE"), O_WRONLY | O_CREAT | O_APPEND, 0644);
    va_list arguments;
    va_start(arguments, format);
    vdprintf(file, format, arguments);
    va_end(arguments);
}

static void *find(const char *name)
{
    static void *library;
    if (!library) library = dlopen(getenv("TRACE_LIBRARY"), RTLD_NOW | RTLD_LOCAL);
    if (!library) note("! %s\n", dlerror());
    return library ? dlsym(library, name) : 0;
}

static int memory(void)
{
    static int file = -1;
    if (file < 0) file = open("/proc/self/mem", O_RDWR);
    return file;
}

static void dump(const char *when, const long *arguments)
{
    for (int n = 1; n < ARGUMENTS; n++) {
        unsigned words[DUMPED / 4];
        long got = arguments[n] > 65536 ? pread(memory(), words, sizeof words, arguments[n]) : 0;
        if (got <= 0) continue;
        char text[DUMPED / 4 * 9 + 1];
        int end = 0;
        for (long at = 0; at < got / 4; at++) end += snprintf(text + end, sizeof text - (size_t)end, " %08x", words[at]);
        note("  %s %d:%s\n", when, n + 1, text);
    }
}

static void paint(const long *arguments)
{
    int argument, offset, number;
    const char *given = getenv("TRACE_PAINT");
    if (!given || sscanf(given, "%d:%d:%d", &argument, &offset, &number) != 3) return;
    if (argument < 1 || argument > ARGUMENTS) return;
    note("  painted %ld\n", (long)pwrite(memory(), &number, sizeof number, arguments[argument - 1] + offset));
}

static int is_followed(int number)
{
    const char *left = getenv("TRACE_DUMP");
    for (char *end; left && *left; left = *end == ',' ? end + 1 : end) {
        if (strtol(left, &end, 10) == number) return 1;
        if (end == left) break;
    }
    return 0;
}

static function table[MAX_SLOTS];

static long slot_call(int number, TAKEN)
{
    int followed = is_followed(number);
    const long arguments[ARGUMENTS] = {PASSED};
    if (followed) dump("before", arguments);
    long code = table[number](PASSED);
    if (number != 26) note("S %d (%lx %lx %lx %lx %lx %lx %lx %lx) %ld\n", number, a, b, c, d, e, f, g, h, code);
    if (followed) dump("after", arguments), paint(arguments);
    return code;
}

#define PUBLIC(number, name) \
    __attribute__((visibility("default"))) long name(TAKEN); \
    long name(TAKEN) \
    { \
        static function real; \
        if (!real) real = (function)find(#name); \
        long code = real ? real(PASSED) : 13; \
        note("P %s %ld\n", #name, code); \
        return code; \
    }
#define SLOT(number) static long slot_##number(TAKEN) { return slot_call(number, PASSED); }
#include "calls.h"

__attribute__((visibility("default"))) int nvmlInternalGetExportTable(const void **into, const unsigned char *id);
int nvmlInternalGetExportTable(const void **into, const unsigned char *id)
{
    static long wrapped[MAX_SLOTS];
    int (*real)(const void **, const unsigned char *) = find("nvmlInternalGetExportTable");
    int code = real ? real(into, id) : 13;
    note("T %d", code);
    for (int at = 0; id && at < 16; at++) note(" %02x", id[at]);
    note("\n");
    if (code || !*into) return code;
    const long *theirs = *into;
    long slots = theirs[0] / 8;
    if (slots > (long)(sizeof SLOTS / sizeof *SLOTS)) note("! %ld slots\n", slots);
    wrapped[0] = theirs[0];
    for (long at = 1; at < slots && at < (long)(sizeof SLOTS / sizeof *SLOTS); at++) {
        table[at] = (function)theirs[at];
        wrapped[at] = table[at] ? (long)SLOTS[at] : 0;
    }
    *into = wrapped;
    return code;
}
