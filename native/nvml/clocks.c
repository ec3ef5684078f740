/* Clocks: what they are, what they may be, and why they are not higher. */
#include "library.h"

enum { PSTATE_UNKNOWN = 32, PSTATES = 16 };
enum clock_id { CLOCK_NOW, CLOCK_APPLICATIONS, CLOCK_DEFAULT, CLOCK_BOOST };

NUMBER(nvmlDeviceGetPerformanceState, unsigned, page->pstate)
NUMBER(nvmlDeviceGetPowerState, unsigned, page->pstate)
SHARED_NUMBER(nvmlDeviceGetCurrentClocksThrottleReasons, uint64_t, page->reasons)
SHARED_NUMBER(nvmlDeviceGetCurrentClocksEventReasons, uint64_t, page->reasons)
SHARED_NUMBER(nvmlDeviceGetSupportedClocksThrottleReasons, uint64_t, 0x1ff)
SHARED_NUMBER(nvmlDeviceGetSupportedClocksEventReasons, uint64_t, 0x1ff)
NUMBER(nvmlDeviceGetAdaptiveClockInfoStatus, unsigned, 1)
NUMBER(nvmlDeviceGetGpcClkVfOffset, int, 0)
NUMBER(nvmlDeviceGetMemClkVfOffset, int, 0)

static unsigned now(const struct page *page, unsigned clock)
{
    return clock == CLOCK_MEMORY ? page->memory_clock : clock == CLOCK_VIDEO ? page->video_clock : page->sm_clock;
}

static unsigned highest(const struct page *page, unsigned clock)
{
    if (clock == CLOCK_MEMORY) return page->memory_clocks[0];
    return clock == CLOCK_VIDEO ? page->video_clock_max : page->sm_clock_max;
}

static unsigned applied(const struct page *page, unsigned clock)
{
    return clock == CLOCK_MEMORY ? page->memory_clocks[0] : page->sm_clock_highest;
}

typedef unsigned (*reading)(const struct page *page, unsigned clock);

static int answer(handle device, unsigned clock, unsigned *into, reading read, enum code unknown)
{
    struct device d;
    int code = shared_open(device, into, &d);
    if (code != OK) return code;
    if (clock >= CLOCKS) return unknown;
    *into = read(&d.page, clock);
    return OK;
}

/* Clocks that can be set: every one but that of the video engines, and the memory has no boost. */
static int settable(handle device, unsigned clock, unsigned *into, reading read, unsigned fixed)
{
    struct device d;
    int code = shared_open(device, into, &d);
    if (code != OK) return code;
    if (!has_application_clocks(&d.page) || (clock < CLOCKS && clock >= fixed)) return NOT_SUPPORTED;
    return answer(device, clock, into, read, INVALID_ARGUMENT);
}

static int clock_of_kind(handle device, unsigned clock, enum clock_id kind, unsigned *into)
{
    switch (kind) {
    case CLOCK_NOW: return answer(device, clock, into, now, NOT_SUPPORTED);
    case CLOCK_APPLICATIONS: return settable(device, clock, into, applied, CLOCK_VIDEO);
    case CLOCK_DEFAULT: return settable(device, clock, into, highest, CLOCK_VIDEO);
    default: return settable(device, clock, into, highest, CLOCK_MEMORY);
    }
}

API nvmlDeviceGetClockInfo(handle device, unsigned clock, unsigned *into)
{
    return clock_of_kind(device, clock, CLOCK_NOW, into);
}

API nvmlDeviceGetApplicationsClock(handle device, unsigned clock, unsigned *into)
{
    return clock_of_kind(device, clock, CLOCK_APPLICATIONS, into);
}

API nvmlDeviceGetDefaultApplicationsClock(handle device, unsigned clock, unsigned *into)
{
    return clock_of_kind(device, clock, CLOCK_DEFAULT, into);
}

API nvmlDeviceGetMaxCustomerBoostClock(handle device, unsigned clock, unsigned *into)
{
    return clock_of_kind(device, clock, CLOCK_BOOST, into);
}

API nvmlDeviceGetMaxClockInfo(handle device, unsigned clock, unsigned *into)
{
    return answer(device, clock, into, highest, INVALID_ARGUMENT);
}

API nvmlDeviceGetClock(handle device, unsigned clock, unsigned kind, unsigned *into)
{
    int code = library_ready();
    if (code != OK) return code;
    return clock < CLOCKS && kind <= CLOCK_BOOST ? clock_of_kind(device, clock, kind, into) : INVALID_ARGUMENT;
}

static unsigned memory_clock_count(const struct page *page)
{
    unsigned count = 0;
    while (memory_clock_at(page, count)) count++;
    return count;
}

API nvmlDeviceGetSupportedMemoryClocks(handle device, unsigned *count, unsigned *into)
{
    struct device d;
    int code = gpu_open(device, count, &d);
    if (code == OK) code = answer_count(count, into, memory_clock_count(&d.page));
    for (unsigned i = 0; code == OK && i < *count; i++) into[i] = memory_clock_at(&d.page, i);
    return code;
}

API nvmlDeviceGetSupportedGraphicsClocks(handle device, unsigned memory, unsigned *count, unsigned *into)
{
    struct device d;
    int code = gpu_open(device, count, &d);
    if (code != OK) return code;
    if (!memory) return INVALID_ARGUMENT;
    const struct page *page = &d.page;
    unsigned known = 0, step = page->sm_clock_step_khz ? page->sm_clock_step_khz : 1000;
    while (known < memory_clock_count(page) && memory_clock_at(page, known) != memory) known++;
    if (known == memory_clock_count(page)) return NOT_FOUND;
    if (page->sm_clock_max < page->sm_clock_min) return NOT_SUPPORTED;
    unsigned there = (page->sm_clock_max - page->sm_clock_min) * 1000 / step + 1;
    code = answer_count(count, into, there);
    for (unsigned i = 0; code == OK && i < there; i++) into[i] = (page->sm_clock_max * 1000 - i * step) / 1000;
    return code;
}

/* The state in which the memory runs at its n-th clock: the two lowest clocks that cards rest at have their own. */
static unsigned state_of_clock(const struct page *page, unsigned n)
{
    enum { RESTING = 405, SLOW = 810 };
    unsigned clock = memory_clock_at(page, n);
    if (n && clock <= RESTING) return 8;
    if (n && clock <= SLOW) return 5;
    return n ? n + 1 : 0;
}

API nvmlDeviceGetSupportedPerformanceStates(handle device, unsigned *into, unsigned size)
{
    struct device d;
    int code = gpu_open(device, into, &d);
    if (code != OK) return code;
    unsigned count = memory_clock_count(&d.page), room = size / sizeof *into;
    if (!size) return INVALID_ARGUMENT;
    if (room < count) return INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < room && i < PSTATES; i++)
        into[i] = i < count ? state_of_clock(&d.page, count - 1 - i) : PSTATE_UNKNOWN;
    return OK;
}

API nvmlDeviceGetMinMaxClockOfPState(handle device, unsigned clock, unsigned state, unsigned *least, unsigned *most)
{
    struct device d;
    int code = gpu_open(device, least, &d);
    if (code != OK) return code;
    if (clock >= CLOCKS || state >= PSTATES || !most) return INVALID_ARGUMENT;
    for (unsigned i = 0; i < memory_clock_count(&d.page); i++)
        if (state_of_clock(&d.page, i) == state) {
            *most = clock == CLOCK_MEMORY ? memory_clock_at(&d.page, i) : highest(&d.page, clock);
            *least = clock == CLOCK_MEMORY ? *most : clock == CLOCK_VIDEO ? d.page.video_clock : d.page.sm_clock_min;
            return OK;
        }
    return UNKNOWN;
}

static int no_offsets(handle device, int *least, int *most)
{
    struct device d;
    int code = gpu_open(device, least, &d);
    if (code != OK || !most) return code == OK ? INVALID_ARGUMENT : code;
    *least = *most = 0;
    return OK;
}

API nvmlDeviceGetGpcClkMinMaxVfOffset(handle device, int *least, int *most) { return no_offsets(device, least, most); }
API nvmlDeviceGetMemClkMinMaxVfOffset(handle device, int *least, int *most) { return no_offsets(device, least, most); }

API nvmlDeviceGetClockOffsets(handle device, struct clock_offset *into)
{
    struct device d;
    int code = gpu_open(device, into, &d);
    if (code != OK) return code;
    if (into->version != VERSION(*into, 1)) return VERSION_MISMATCH;
    if (into->type >= CLOCKS || into->pstate >= PSTATES) return INVALID_ARGUMENT;
    into->offset = into->least = into->most = 0;
    return OK;
}

/* "name=now, namemin=..., namemax=..., nameeditable=0" */
static size_t describe(char *text, size_t at, size_t size, const char *name, unsigned now, unsigned least,
                       unsigned most)
{
    const struct { const char *what; unsigned value; } PARTS[] = {
        {"", now}, {"min", least}, {"max", most}, {"editable", 0},
    };
    for (unsigned i = 0; i < 4; i++) {
        at = text_add(text, at, i ? ", " : "", size);
        at = text_add(text, at, name, size);
        at = text_add(text, at, PARTS[i].what, size);
        at = text_add(text, at, "=", size);
        at = text_add_number(text, at, PARTS[i].value, size);
    }
    return at;
}

static size_t describe_all(struct clock_text *into, size_t at, const struct page *page, unsigned sm, unsigned memory)
{
    at = describe(into->text, at, sizeof into->text, "nvclock", sm, page->sm_clock_min, page->sm_clock_max);
    at = text_add(into->text, at, ", ", sizeof into->text);
    at = describe(into->text, at, sizeof into->text, "memclock", memory, memory, memory);
    at = text_add(into->text, at, ", ", sizeof into->text);
    return describe(into->text, at, sizeof into->text, "memTransferRate", 2 * memory, 2 * memory, 2 * memory);
}

API nvmlDeviceGetCurrentClockFreqs(handle device, struct clock_text *into)
{
    struct device d;
    int code = shared_open(device, into, &d);
    if (code != OK) return code;
    if (into->version != VERSION(*into, 1)) return VERSION_MISMATCH;
    describe_all(into, 0, &d.page, d.page.sm_clock, d.page.memory_clock);
    return OK;
}

API nvmlDeviceGetPerformanceModes(handle device, struct clock_text *into)
{
    struct device d;
    int code = shared_open(device, into, &d);
    if (code != OK) return code;
    if (into->version != VERSION(*into, 1)) return VERSION_MISMATCH;
    size_t at = 0;
    for (unsigned i = 0, count = memory_clock_count(&d.page); i < count; i++) {
        at = text_add(into->text, at, i ? " ; perf=" : "perf=", sizeof into->text);
        at = text_add_number(into->text, at, i, sizeof into->text);
        at = text_add(into->text, at, ", ", sizeof into->text);
        at = describe_all(into, at, &d.page, d.page.sm_clock_min, memory_clock_at(&d.page, count - 1 - i));
    }
    return OK;
}
