/* GPM: what happened on the card between two samples that the caller takes. */
#include "library.h"

enum { SAMPLES = 1024, REQUEST_VERSION = 1, SUPPORT_VERSION = 1, FIRST_WITH_GPM = 900, PARTS_OF_A_PERCENT = 10000 };

struct gpm_sample {
    int allocated, taken;
    uint64_t time_ns, pcie_out, pcie_in, links;
    uint32_t busy, sm, tensor, dram; /* parts of a million */
    uint32_t has_links;
};

static struct gpm_sample samples[SAMPLES];
static struct lock lock;

/* The sample behind a handle, or 0; the lock is held. */
static struct gpm_sample *sample_at(const void *handle)
{
    uintptr_t offset = (uintptr_t)handle - (uintptr_t)samples;
    if (offset >= sizeof samples || offset % sizeof *samples) return 0;
    struct gpm_sample *sample = &samples[offset / sizeof *samples];
    return sample->allocated ? sample : 0;
}

API nvmlGpmSampleAlloc(void **into)
{
    int code = library_ready();
    if (code != OK) return code;
    if (!into) return INVALID_ARGUMENT;
    code = INSUFFICIENT_MEMORY;
    lock_take(&lock);
    for (unsigned i = 0; i < SAMPLES && code != OK; i++)
        if (!samples[i].allocated) {
            samples[i] = (struct gpm_sample){.allocated = 1};
            *into = &samples[i];
            code = OK;
        }
    lock_give(&lock);
    return code;
}

API nvmlGpmSampleFree(void *handle)
{
    int code = library_ready();
    if (code != OK) return code;
    lock_take(&lock);
    struct gpm_sample *sample = sample_at(handle);
    if (sample) sample->allocated = 0;
    lock_give(&lock);
    return sample ? OK : INVALID_ARGUMENT;
}

static int can_sample(const struct page *page) { return page->capability >= FIRST_WITH_GPM; }

static int take(const struct page *page, const void *handle)
{
    lock_take(&lock);
    struct gpm_sample *sample = sample_at(handle);
    if (sample)
        *sample = (struct gpm_sample){
            1, 1, page->written_ns, page->pcie_tx_bytes, page->pcie_rx_bytes, page->link_bytes,
            page->busy_ppm, page->sm_ppm, page->tensor_ppm, page->dram_ppm, page->links != 0,
        };
    lock_give(&lock);
    return sample ? OK : INVALID_ARGUMENT;
}

API nvmlGpmSampleGet(handle device, void *sample)
{
    struct device d;
    int code = gpu_open(device, sample, &d);
    if (code != OK) return code;
    return can_sample(&d.page) ? take(&d.page, sample) : NOT_SUPPORTED;
}

/* An instance's own share: the page has only its utilisation. */
API nvmlGpmMigSampleGet(handle device, unsigned gpu_instance, void *sample)
{
    struct device d;
    int code = gpu_open(device, sample, &d);
    if (code != OK) return code;
    if (!can_sample(&d.page)) return NOT_SUPPORTED;
    for (unsigned i = 0; i < d.page.instance_count; i++)
        if (d.page.instances[i].gpu_instance == gpu_instance) {
            d.page.busy_ppm = d.page.sm_ppm = d.page.instances[i].usage * PARTS_OF_A_PERCENT;
            d.page.tensor_ppm = d.page.dram_ppm = 0;
            return take(&d.page, sample);
        }
    return INVALID_ARGUMENT;
}

API nvmlGpmQueryDeviceSupport(handle device, struct versioned *into)
{
    struct device d;
    int code = gpu_open(device, into, &d);
    if (code != OK) return code;
    if (into->version != SUPPORT_VERSION) return VERSION_MISMATCH;
    into->value = can_sample(&d.page);
    return OK;
}

NUMBER(nvmlGpmQueryIfStreamingEnabled, unsigned, 0)

static double percent(uint32_t before, uint32_t after)
{
    return ((double)before + (double)after) / 2 / PARTS_OF_A_PERCENT;
}

static double rate(uint64_t before, uint64_t after, uint64_t nanoseconds)
{
    enum { MEBIBYTE = 1 << 20 };
    return nanoseconds && after > before ? (double)(after - before) / MEBIBYTE * 1e9 / (double)nanoseconds : 0;
}

enum { GRAPHICS_BUSY = 1, SM_BUSY = 2, TENSOR_BUSY = 5, HALF_TENSOR_BUSY = 7, DRAM_BUSY = 10,
       PCIE_OUT = 20, PCIE_IN = 21, LINKS_IN = 60, LINKS_OUT = 61 };

static int measure(struct gpm_metric *metric, const struct gpm_sample *a, const struct gpm_sample *b)
{
    static const struct gpm_info PERCENT = {"util", "Utilization", "%"}, RATE = {"rate", "Throughput", "MiB/s"};
    uint64_t time = b->time_ns > a->time_ns ? b->time_ns - a->time_ns : 0;
    metric->info = metric->id < PCIE_OUT ? PERCENT : RATE;
    switch (metric->id) {
    case GRAPHICS_BUSY: metric->value = percent(a->busy, b->busy); return OK;
    case SM_BUSY: metric->value = percent(a->sm, b->sm); return OK;
    case TENSOR_BUSY: case HALF_TENSOR_BUSY: metric->value = percent(a->tensor, b->tensor); return OK;
    case DRAM_BUSY: metric->value = percent(a->dram, b->dram); return OK;
    case PCIE_OUT: metric->value = rate(a->pcie_out, b->pcie_out, time); return OK;
    case PCIE_IN: metric->value = rate(a->pcie_in, b->pcie_in, time); return OK;
    case LINKS_IN: case LINKS_OUT:
        metric->value = rate(a->links / 2, b->links / 2, time);
        return b->has_links ? OK : NOT_SUPPORTED;
    default: metric->value = 0; return metric->id && metric->id < GPM_METRICS ? NOT_SUPPORTED : INVALID_ARGUMENT;
    }
}

API nvmlGpmMetricsGet(struct gpm_request *request)
{
    int code = library_ready();
    if (code != OK) return code;
    if (!request) return INVALID_ARGUMENT;
    if (request->version != REQUEST_VERSION) return VERSION_MISMATCH;
    if (!request->count || request->count > GPM_METRICS) return INVALID_ARGUMENT;
    lock_take(&lock);
    const struct gpm_sample *a = sample_at(request->first), *b = sample_at(request->second);
    if (!a || !b || !a->taken || !b->taken) code = INVALID_ARGUMENT;
    for (unsigned i = 0; code == OK && i < request->count; i++)
        request->metric[i].code = (uint32_t)measure(&request->metric[i], a, b);
    lock_give(&lock);
    return code;
}
