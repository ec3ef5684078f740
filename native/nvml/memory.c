/* Memory: the first call counts what the driver keeps as used, the second separates the two. */
#include "library.h"

static struct memory_v2 measure(const struct device *d)
{
    const struct page *page = &d->page;
    uint64_t total = d->instance ? d->instance->memory_total : page->memory_total;
    uint64_t used = d->instance ? d->instance->memory_used : page->memory_used;
    uint64_t reserved = d->instance ? 0 : page->memory_reserved;
    if (reserved > total) reserved = total;
    if (used > total - reserved) used = total - reserved;
    return (struct memory_v2){VERSION(struct memory_v2, 2), total, reserved, total - reserved - used, used};
}

API nvmlDeviceGetMemoryInfo(handle device, struct memory *into)
{
    struct device d;
    int code = any_open(device, into, &d);
    if (code != OK) return code;
    struct memory_v2 memory = measure(&d);
    *into = (struct memory){memory.total, memory.free, memory.used + memory.reserved};
    return OK;
}

/* A wrong version word reads as a function that does not exist, as with the real library, for this function alone. */
API nvmlDeviceGetMemoryInfo_v2(handle device, struct memory_v2 *into)
{
    struct device d;
    int code = any_open(device, into, &d);
    if (code != OK) return code;
    if (into->version != VERSION(*into, 2)) return FUNCTION_NOT_FOUND;
    *into = measure(&d);
    return OK;
}

API nvmlDeviceGetBAR1MemoryInfo(handle device, struct memory *into)
{
    struct device d;
    int code = any_open(device, into, &d);
    if (code == OK && !d.page.bar1_total) code = NOT_SUPPORTED; /* the host's processors reach all memory without one */
    if (code != OK) return code;
    uint64_t total = d.instance ? (uint64_t)d.instance->bar1_kib * 1024 : d.page.bar1_total;
    uint64_t used = total == d.page.bar1_total ? d.page.bar1_used : 0; /* what is mapped is not counted by part */
    if (used > total) used = total;
    *into = (struct memory){total, total - used, used};
    return OK;
}

API nvmlDeviceGetConfComputeMemSizeInfo(handle device, struct compute_sizes *into)
{
    struct device d;
    int code = shared_open(device, into, &d);
    if (code != OK) return code;
    struct memory_v2 memory = measure(&d);
    *into = (struct compute_sizes){0, (memory.total - memory.reserved) / 1024};
    return OK;
}

API nvmlDeviceGetConfComputeProtectedMemoryUsage(handle device, struct memory *into)
{
    struct device d;
    int code = gpu_open(device, into, &d);
    if (code == OK) clear(into, sizeof *into);
    return code;
}

NUMBER_IF(nvmlDeviceGetMemoryBusWidth, unsigned, page->bus_width, page->bus_width)
