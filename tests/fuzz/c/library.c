/* libnvidia-ml over a hostile page: functions that an input chooses, with rooms for what they answer.
 *
 * CALLS is generated from the library's sources: a function, a letter for each argument, and the sizes of structures. The
 * caller is an honest one: what it says of its rooms is true.
 */
#include <stdlib.h>
#include <string.h>

#include "calls.h"
#include "pages.h"

enum { CALLED = 24, ROOM = 1 << 17, ARGUMENTS = 8 };
typedef int function(long, long, long, long, long, long, long, long);

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

/* A structure begins with its size and version; a list has as much room as is said before it. */
static long room(char *at, char kind, size_t size)
{
    static const uint32_t CAPACITIES[] = {0, 1, 4, 16}, NUMBERS[] = {0, 1, 2, 3, 9, 19, 83, 146, 1000};
    uint32_t first = NUMBERS[next() % 9], version = (uint32_t)size | (next() % 3 + 1) << 24;
    memset(at, 0, 4096);
    for (int i = 1; kind == 'p' && i < 8; i++) memcpy(at + 4 * i, &NUMBERS[next() % 9], 4);
    if (kind == 'c') first = CAPACITIES[next() % 4];
    if (kind == 'p' && size && next() % 4) first = version;
    if (kind == 't') memcpy(at, next() % 2 ? "0000:06:00.0" : "GPU-11111111-2222-3333-4444-555555555555", 13);
    else memcpy(at, &first, 4);
    return (long)at;
}

static long argument(char kind, char *at, size_t size)
{
    static const long NUMBERS[] = {0, 1, 2, 3, 4, 5, 7, 9, 14, 17, 19, 64, 1000, -1};
    switch (kind) {
    case 'd': case 'g': case 'i': return handle_of(kind);
    case 'n': return NUMBERS[next() % (sizeof NUMBERS / sizeof *NUMBERS)];
    case 's': return next() % 3 ? 96 : next() % 8; /* of a list or a text: less than its room */
    default: return room(at, kind, size);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char rooms[ARGUMENTS][ROOM];
    if (size < 24) return 0;
    memcpy(&state, data, 8);
    pages_prepare();
    owner_answers(data + 8, 15);
    page_put(data + 23, size - 23);
    if (nvmlInit_v2() == 0) {
        for (int n = 0; n < CALLED; n++) {
            size_t chosen = next() % (sizeof CALLS / sizeof *CALLS);
            long given[ARGUMENTS] = {0};
            for (int i = 0; CALLS[chosen].kinds[i]; i++) given[i] = argument(CALLS[chosen].kinds[i], rooms[i], CALLS[chosen].sizes[i]);
            ((function *)CALLS[chosen].function)(
                given[0], given[1], given[2], given[3], given[4], given[5], given[6], given[7]
            );
        }
        nvmlShutdown();
    }
    return 0;
}
