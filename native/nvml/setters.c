/* Settings. What makes no sense is refused here; what the owner of the card makes of the rest is its answer. */
#include "library.h"

enum { LIMIT_IDS = 0xffffff00, COMPUTE_EXCLUSIVE_THREAD = 1, COMPUTE_MODES = 4, SCOPE_GPU = 0 };

static int gpu_only(handle device, struct device *d) { return gpu_open(device, device, d); }

static int set_power_limit(handle device, unsigned milliwatts)
{
    struct device d;
    int code = gpu_only(device, &d);
    if (code != OK) return code;
    if (milliwatts < d.page.power_min_mw || milliwatts > d.page.power_max_mw) return INVALID_ARGUMENT;
    return card_set(&d.page, "power_limit", milliwatts, 0);
}

API nvmlDeviceSetPowerManagementLimit(handle device, unsigned milliwatts)
{
    return set_power_limit(device, milliwatts);
}

API nvmlDeviceSetPowerManagementLimit_v2(handle device, const struct power_value *value)
{
    int code = library_ready();
    if (code != OK) return code;
    if (!value) return INVALID_ARGUMENT;
    if (value->version != VERSION(*value, 2)) return VERSION_MISMATCH;
    return value->scope == SCOPE_GPU ? set_power_limit(device, value->milliwatts) : NOT_SUPPORTED;
}

/* Some numbers stand for "as high as it goes". */
static unsigned meant(unsigned clock, unsigned highest) { return clock >= LIMIT_IDS ? highest : clock; }

static int set_range(struct device *d, const char *setting, unsigned least, unsigned most, unsigned lowest,
                     unsigned highest)
{
    least = meant(least, highest);
    most = meant(most, highest);
    if (least > most || most < lowest || least > highest) return INVALID_ARGUMENT;
    return card_set(&d->page, setting, least < lowest ? lowest : least, most > highest ? highest : most);
}

API nvmlDeviceSetGpuLockedClocks(handle device, unsigned least, unsigned most)
{
    struct device d;
    int code = gpu_only(device, &d);
    return code == OK ? set_range(&d, "sm_clocks", least, most, d.page.sm_clock_min, d.page.sm_clock_max) : code;
}

static unsigned lowest_memory_clock(const struct page *page)
{
    unsigned last = 0;
    while (memory_clock_at(page, last + 1)) last++;
    return memory_clock_at(page, last);
}

API nvmlDeviceSetMemoryLockedClocks(handle device, unsigned least, unsigned most)
{
    struct device d;
    int code = gpu_only(device, &d);
    if (code != OK) return code;
    return set_range(&d, "memory_clocks", least, most, lowest_memory_clock(&d.page), d.page.memory_clocks[0]);
}

static int is_memory_clock(const struct page *page, unsigned clock)
{
    for (unsigned i = 0; i < MAX_MEMORY_CLOCKS; i++)
        if (clock && memory_clock_at(page, i) == clock) return 1;
    return 0;
}

API nvmlDeviceSetApplicationsClocks(handle device, unsigned memory, unsigned sm)
{
    struct device d;
    int code = gpu_only(device, &d);
    if (code != OK) return code;
    if (!is_memory_clock(&d.page, memory)) return INVALID_ARGUMENT;
    if (sm < d.page.sm_clock_min || sm > d.page.sm_clock_max) return INVALID_ARGUMENT;
    return card_set(&d.page, "applications_clocks", memory, sm);
}

#define RESET(function, setting) \
    API function(handle device) \
    { \
        struct device d; \
        int code = gpu_only(device, &d); \
        return code == OK ? card_set(&d.page, setting, 0, 0) : code; \
    }

RESET(nvmlDeviceResetGpuLockedClocks, "reset_sm_clocks")
RESET(nvmlDeviceResetMemoryLockedClocks, "reset_memory_clocks")
RESET(nvmlDeviceResetApplicationsClocks, "reset_applications_clocks")

static int choose(handle device, const char *setting, unsigned value, unsigned choices)
{
    struct device d;
    int code = gpu_only(device, &d);
    if (code != OK) return code;
    return value < choices ? card_set(&d.page, setting, value, 0) : INVALID_ARGUMENT;
}

API nvmlDeviceSetPersistenceMode(handle device, unsigned mode) { return choose(device, "persistence", mode, 2); }
API nvmlDeviceClearEccErrorCounts(handle device, unsigned counter) { return choose(device, "ecc_clear", counter, 2); }

API nvmlDeviceSetComputeMode(handle device, unsigned mode)
{
    int code = library_ready();
    if (code == OK && mode == COMPUTE_EXCLUSIVE_THREAD) return NOT_SUPPORTED;
    return code == OK ? choose(device, "compute_mode", mode, COMPUTE_MODES) : code;
}

/* Settings that a card has, but that cannot be changed in the simulation. */
#define DENIED(function) \
    API function(handle device) \
    { \
        struct device d; \
        int code = gpu_only(device, &d); \
        return code == OK ? NO_PERMISSION : code; \
    }

DENIED(nvmlDeviceSetEccMode)
DENIED(nvmlDeviceSetCpuAffinity)
DENIED(nvmlDeviceClearCpuAffinity)
