/* libnvidia-ml over hostile pages: functions that an input chooses, with rooms for what they answer.
 *
 * CALLS is generated from the library's sources: a function, a letter for each argument, and the sizes of what pointers
 * point to, of one element for lists. The caller is an honest one: what it says of its rooms is true, and what lies behind
 * them is poisoned, so that the sanitizer finds each byte that is written or read there. A size of 0 is not known.
 */
#include <stdlib.h>
#include <string.h>

#include "calls.h"
#include "pages.h"

enum { CALLED = 24, ROOM = 1 << 17, ARGUMENTS = 8 };
typedef int function(long, long, long, long, long, long, long, long);

void __asan_poison_memory_region(const volatile void *at, size_t size);
void __asan_unpoison_memory_region(const volatile void *at, size_t size);

static uint64_t state;

static uint32_t next(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33);
}

static long handle_of(char kind)
{
    static const int PARTS = 4;
    void *card = 0, *part = 0, *instance = 0, *compute = 0;
    unsigned number = 0;
    nvmlDeviceGetHandleByIndex_v2(0, &card);
    if (next() % 2) nvmlDeviceGetMigDeviceHandleByIndex(card, next() % PARTS, &part);
    if (kind == 'd') return (long)(part ? part : card);
    if (part) nvmlDeviceGetGpuInstanceId(part, &number);
    nvmlDeviceGetGpuInstanceById(card, number, &instance);
    if (kind == 'g') return (long)instance;
    nvmlGpuInstanceGetComputeInstanceById(instance, 0, &compute);
    return (long)compute;
}

/* A structure begins with its size and version. */
static void fill(char *at, size_t size)
{
    static const uint32_t NUMBERS[] = {0, 1, 2, 3, 9, 19, 83, 146, 1000};
    char first[4096] = {0};
    uint32_t version = (uint32_t)size | (next() % 3 + 1) << 24;
    for (int i = 0; i < 8; i++) memcpy(first + 4 * i, &NUMBERS[next() % 9], 4);
    if (size && next() % 4) memcpy(first, &version, 4);
    if (!size) size = ROOM;
    memcpy(at, first, size < sizeof first ? size : sizeof first);
    __asan_poison_memory_region(at + size, ROOM - size);
}

static void text(char *at)
{
    static const char *const TEXTS[] = {"0000:06:00.0", "GPU-11111111-2222-3333-4444-555555555555", "GPU-", ""};
    const char *chosen = TEXTS[next() % 4];
    size_t size = strlen(chosen) + 1;
    memcpy(at, chosen, size);
    __asan_poison_memory_region(at + size, ROOM - size);
}

/* `amount` is the capacity that the call says its list has, in elements. */
static long argument(char kind, char *at, size_t size, uint32_t amount)
{
    static const long NUMBERS[] = {0, 1, 2, 3, 4, 5, 7, 9, 14, 17, 19, 64, 1000, -1};
    switch (kind) {
    case 'd': case 'g': case 'i': return handle_of(kind);
    case 'n': return NUMBERS[next() % (sizeof NUMBERS / sizeof *NUMBERS)];
    case 's': return amount;
    case 't': text(at); break;
    case 'l': __asan_poison_memory_region(at + size * amount, size ? ROOM - size * amount : 0); break;
    case 'c': memcpy(at, &amount, 4); __asan_poison_memory_region(at + 4, ROOM - 4); break;
    default: fill(at, size);
    }
    return (long)at;
}

static void call_one(void)
{
    static const uint32_t AMOUNTS[] = {0, 1, 2, 4, 7, 16, 96, 96};
    static char rooms[ARGUMENTS][ROOM];
    size_t chosen = next() % (sizeof CALLS / sizeof *CALLS);
    const char *kinds = CALLS[chosen].kinds;
    uint32_t amount = AMOUNTS[next() % 8];
    long given[ARGUMENTS] = {0};
    for (int i = 0; kinds[i]; i++) given[i] = argument(kinds[i], rooms[i], CALLS[chosen].sizes[i], amount);
    ((function *)CALLS[chosen].function)(
        given[0], given[1], given[2], given[3], given[4], given[5], given[6], given[7]
    );
    for (int i = 0; kinds[i]; i++) __asan_unpoison_memory_region(rooms[i], ROOM);
}

/* What a wait reports of an ordinary card whose page becomes the given one. */
static void await_events(const uint8_t *data, size_t size)
{
    struct event_v1 old;
    struct event event;
    void *card = 0, *set = 0;
    nvmlDeviceGetHandleByIndex_v2(next() % 2, &card);
    if (nvmlEventSetCreate(&set)) return;
    nvmlDeviceRegisterEvents(card, 0xff9ful, set);
    page_change(data, size);
    for (int i = 0; i < 20 && !nvmlEventSetWait_v2(set, &event, 0); i++) continue;
    nvmlEventSetWait(set, &old, 0);
    nvmlEventSetFree(set);
}

static void measure(void)
{
    struct gpm_request *request = calloc(1, sizeof *request);
    void *card = 0;
    nvmlDeviceGetHandleByIndex_v2(0, &card);
    if (!nvmlGpmSampleAlloc(&request->first) && !nvmlGpmSampleAlloc(&request->second)) {
        nvmlGpmSampleGet(card, request->first);
        if (nvmlGpmMigSampleGet(card, next() % 8, request->second)) nvmlGpmSampleGet(card, request->second);
        request->version = next() % 8 != 0;
        request->count = 1 + next() % (GPM_METRICS + 1);
        for (unsigned i = 0; i < GPM_METRICS; i++) request->metric[i].id = next() % 400;
        nvmlGpmMetricsGet(request);
    }
    nvmlGpmSampleFree(request->first);
    nvmlGpmSampleFree(request->second);
    free(request);
}

static void list_processes(void)
{
    uint32_t room = next() % 40;
    struct process_details details = {VERSION(details, 1), next() % 4, room, calloc(room, sizeof *details.processes)};
    struct process_usages usages = {VERSION(usages, 1), room, next() % 2, calloc(room, sizeof *usages.processes)};
    long device = handle_of('d');
    nvmlDeviceGetRunningProcessDetailList(device, &details);
    nvmlDeviceGetProcessesUtilizationInfo(device, &usages);
    free(details.processes);
    free(usages.processes);
}

/* The library's own copying, which its build for this has under these names, is that of any C library. */
static void move_bytes(void)
{
    enum { BYTES = 64 };
    uint8_t bytes[BYTES], expected[BYTES], other[BYTES];
    size_t from = next() % BYTES, to = next() % BYTES, size = next() % (BYTES + 1 - (from > to ? from : to));
    for (size_t i = 0; i < BYTES; i++) bytes[i] = other[i] = (uint8_t)i;
    for (size_t i = 0; i < BYTES; i++) expected[i] = (uint8_t)(i < to || i >= to + size ? i : from + i - to);
    memcpy(bytes + to, other + from, size);
    if (memcmp(bytes, expected, BYTES)) abort();
    memmove(other + to, other + from, size);
    if (memcmp(other, expected, BYTES)) abort();
    memset(other, 3, size);
    for (size_t i = 0; i < BYTES; i++)
        if (other[i] != (i < size ? 3 : expected[i])) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 24) return 0;
    memcpy(&state, data, 8);
    move_bytes();
    pages_prepare();
    owner_answers(data + 8, 15);
    int changes = next() % 4 == 0;
    if (changes) page_put_valid();
    else page_put(data + 23, size - 23);
    if (nvmlInit_v2() == 0) {
        if (changes) await_events(data + 23, size - 23);
        measure();
        list_processes();
        for (int n = 0; n < CALLED; n++) call_one();
        nvmlShutdown();
    }
    return 0;
}
