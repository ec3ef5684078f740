/* How busy the card is, now and in the last samples. */
#include "library.h"

enum { PERIOD_US = 100000, ENCODER_FREE = 100 };

API nvmlDeviceGetUtilizationRates(handle device, struct utilization *into)
{
    struct device d;
    int code = shared_open(device, into, &d);
    if (code != OK) return code;
    if (d.page.mig_mode) return NOT_SUPPORTED;
    *into = (struct utilization){d.page.usage, d.page.memory_usage};
    return OK;
}

/* The video engines have no work in the simulation. */
static int engine(handle device, unsigned *percent, unsigned *period)
{
    struct device d;
    int code = gpu_open(device, percent, &d);
    if (code != OK || !period) return code == OK ? INVALID_ARGUMENT : code;
    if (d.page.mig_mode) return NOT_SUPPORTED;
    *percent = 0;
    *period = PERIOD_US;
    return OK;
}

#define ENGINE(function) \
    API function(handle device, unsigned *percent, unsigned *period) { return engine(device, percent, period); }

ENGINE(nvmlDeviceGetEncoderUtilization)
ENGINE(nvmlDeviceGetDecoderUtilization)
ENGINE(nvmlDeviceGetJpgUtilization)
ENGINE(nvmlDeviceGetOfaUtilization)

API nvmlDeviceGetEncoderCapacity(handle device, unsigned codec, unsigned *into)
{
    enum { H264, HEVC, AV1, CODECS };
    struct device d;
    int code = gpu_open(device, into, &d);
    if (code != OK) return code;
    if (codec >= CODECS) return INVALID_ARGUMENT;
    if (codec == AV1) return NOT_SUPPORTED;
    *into = ENCODER_FREE;
    return OK;
}

API nvmlDeviceGetEncoderStats(handle device, unsigned *sessions, unsigned *frames, unsigned *latency)
{
    struct device d;
    int code = gpu_open(device, sessions, &d);
    if (code != OK || !frames || !latency) return code == OK ? INVALID_ARGUMENT : code;
    *sessions = *frames = *latency = 0;
    return OK;
}

API nvmlDeviceGetFBCStats(handle device, unsigned into[3])
{
    struct device d;
    int code = gpu_open(device, into, &d);
    if (code == OK) into[0] = into[1] = into[2] = 0;
    return code;
}

static int no_sessions(handle device, unsigned *count)
{
    struct device d;
    int code = gpu_open(device, count, &d);
    if (code == OK) *count = 0;
    return code;
}

API nvmlDeviceGetEncoderSessions(handle device, unsigned *count) { return no_sessions(device, count); }
API nvmlDeviceGetFBCSessions(handle device, unsigned *count) { return no_sessions(device, count); }

API nvmlDeviceGetDynamicPstatesInfo(handle device, struct pstates_info *into)
{
    enum { PRESENT = 4 };
    struct device d;
    int code = gpu_open(device, into, &d);
    if (code != OK) return code;
    clear(into, sizeof *into);
    for (unsigned i = 0; i < PRESENT; i++) into->use[i].present = 1;
    into->use[0].percent = d.page.usage;
    into->use[1].percent = d.page.memory_usage;
    return OK;
}

enum { SAMPLES_POWER, SAMPLES_GPU, SAMPLES_MEMORY, SAMPLES_ENCODER, SAMPLES_DECODER, SAMPLES_SM_CLOCK,
       SAMPLES_MEMORY_CLOCK, SAMPLES_MODULE_POWER, SAMPLES_JPEG, SAMPLES_OFA, SAMPLINGS };

static unsigned sampled(const struct sample *sample, unsigned kind)
{
    switch (kind) {
    case SAMPLES_POWER: return sample->power_mw;
    case SAMPLES_GPU: return sample->usage;
    case SAMPLES_MEMORY: return sample->memory_usage;
    default: return 0;
    }
}

/* Without a buffer, only their number is returned. There are no samples of clocks. */
API nvmlDeviceGetSamples(handle device, unsigned kind, uint64_t since, unsigned *type, unsigned *count,
                         struct value_sample *into)
{
    struct device d;
    int code = gpu_open(device, count, &d);
    if (code != OK) return code;
    if (!type || kind >= SAMPLINGS || (into && !*count)) return INVALID_ARGUMENT;
    *type = TYPE_UINT;
    if (kind == SAMPLES_SM_CLOCK || kind == SAMPLES_MEMORY_CLOCK || kind == SAMPLES_MODULE_POWER) return NOT_FOUND;
    unsigned there = 0;
    uint64_t all = d.page.sample_count, first = all > PAGE_SAMPLES ? all - PAGE_SAMPLES : 0;
    for (uint64_t i = first; i < all; i++) {
        const struct sample *sample = &d.page.samples[i % PAGE_SAMPLES];
        if (sample->time_us <= since) continue;
        if (into && there == *count) break;
        if (into) into[there] = (struct value_sample){sample->time_us, {.ull = sampled(sample, kind)}};
        there++;
    }
    *count = there;
    return there ? OK : NOT_FOUND;
}
