/* MIG: whether a card is divided, into what, and into what it could be. */
#include "mig.h"

API nvmlDeviceIsMigDeviceHandle(handle device, unsigned *into)
{
    struct device d;
    int code = any_open(device, into, &d);
    if (code == OK) *into = d.instance != 0;
    return code;
}

API nvmlDeviceGetMigMode(handle device, unsigned *now, unsigned *pending)
{
    struct device d;
    int code = gpu_open(device, now, &d);
    if (code != OK || !pending) return code == OK ? INVALID_ARGUMENT : code;
    if (!d.page.mig_capable) return NOT_SUPPORTED;
    *now = *pending = d.page.mig_mode;
    return OK;
}

static unsigned most_instances(const struct page *page)
{
    unsigned most = 0;
    for (unsigned i = 0; page->mig_mode && i < PAGE_PROFILES; i++)
        if (page->profiles[i].most > most) most = page->profiles[i].most;
    return most;
}

NUMBER(nvmlDeviceGetMaxMigDeviceCount, unsigned, most_instances(page))

API nvmlDeviceGetMigDeviceHandleByIndex(handle device, unsigned index, handle *into)
{
    struct device d;
    int code = gpu_open(device, into, &d);
    if (code != OK) return code;
    if (index >= d.page.instance_count) return NOT_FOUND;
    *into = mig_handle(d.card, &d.page.instances[index]);
    return OK;
}

/* Questions that only a handle of a MIG device can answer. */
static int mig_open(handle device, const void *into, struct device *d)
{
    int code = any_open(device, into, d);
    return code == OK && !d->instance ? INVALID_ARGUMENT : code;
}

API nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle device, handle *into)
{
    struct device d;
    int code = mig_open(device, into, &d);
    if (code == OK) *into = device_handle(d.card);
    return code;
}

API nvmlDeviceGetGpuInstanceId(handle device, unsigned *into)
{
    struct device d;
    int code = mig_open(device, into, &d);
    if (code == OK) *into = d.instance->gpu_instance;
    return code;
}

API nvmlDeviceGetComputeInstanceId(handle device, unsigned *into)
{
    struct device d;
    int code = mig_open(device, into, &d);
    if (code == OK) *into = d.instance->compute_instance;
    return code;
}

static int attributes(handle device, struct attributes *into)
{
    struct device d;
    int code = any_open(device, into, &d);
    if (code != OK || !d.instance) return code == OK ? NOT_SUPPORTED : code;
    const struct profile *profile = instance_profile(&d.page, d.instance);
    struct compute compute = compute_of(&d.page, d.instance);
    *into = (struct attributes){compute.sm, profile->copy_engines, profile->decoders, 0, profile->jpegs, profile->ofas,
                                profile->slices, compute.slices, d.instance->memory_total >> 20};
    return OK;
}

API nvmlDeviceGetAttributes(handle device, struct attributes *into) { return attributes(device, into); }
API nvmlDeviceGetAttributes_v2(handle device, struct attributes *into) { return attributes(device, into); }

static struct profile_info describe(const struct profile *profile)
{
    return (struct profile_info){profile->id, 0, profile->slices, profile->most, profile->sm, profile->copy_engines,
                                 profile->decoders, 0, profile->jpegs, profile->ofas, profile->memory_mib};
}

static void name_profile(char *into, size_t size, const struct profile *profile)
{
    size_t end = text_add(into, 0, "MIG ", size);
    text_add(into, end, profile->name, size);
}

static void fill_v2(struct profile_info_v2 *into, const struct profile *profile)
{
    struct profile_info info = describe(profile);
    *into = (struct profile_info_v2){0, info.id, info.p2p, info.slices, info.instances, info.multiprocessors,
        info.copy_engines, info.decoders, info.encoders, info.jpegs, info.ofas, info.memory_mb, {0}};
    name_profile(into->name, sizeof into->name, profile);
}

static void fill_v3(struct profile_info_v3 *into, const struct profile *profile)
{
    struct profile_info info = describe(profile);
    *into = (struct profile_info_v3){0, info.id, info.slices, info.instances, info.multiprocessors, info.copy_engines,
        info.decoders, info.encoders, info.jpegs, info.ofas, info.memory_mb, {0}, 0};
    name_profile(into->name, sizeof into->name, profile);
}

enum { PROFILE_KINDS = 18 };

/* The version word selects the structure, and reads 0 afterwards, as with the real library. */
static int profile_info_v(void *into, const struct profile *profile)
{
    uint32_t version = *(const uint32_t *)into;
    int second = version == VERSION(struct profile_info_v2, 2);
    if (!second && version != VERSION(struct profile_info_v3, 3)) return INVALID_ARGUMENT;
    if (!profile) return NOT_SUPPORTED;
    if (second) fill_v2(into, profile);
    else fill_v3(into, profile);
    return OK;
}

static int find_kind(handle device, unsigned kind, const void *into, struct device *d, const struct profile **profile)
{
    int code = gpu_open(device, into, d);
    if (code != OK) return code;
    if (kind >= PROFILE_KINDS) return INVALID_ARGUMENT;
    *profile = profile_by_kind(&d->page, kind);
    return OK;
}

static int find_id(handle device, unsigned id, const void *into, struct device *d, const struct profile **profile)
{
    int code = gpu_open(device, into, d);
    if (code != OK) return code;
    if (!d->page.mig_capable) return NOT_SUPPORTED;
    *profile = profile_by_id(&d->page, id);
    return *profile ? OK : INVALID_ARGUMENT;
}

API nvmlDeviceGetGpuInstanceProfileInfo(handle device, unsigned kind, struct profile_info *into)
{
    struct device d;
    const struct profile *profile;
    int code = find_kind(device, kind, into, &d, &profile);
    if (code == OK && !profile) return NOT_SUPPORTED;
    if (code == OK) *into = describe(profile);
    return code;
}

API nvmlDeviceGetGpuInstanceProfileInfoV(handle device, unsigned kind, void *into)
{
    struct device d;
    const struct profile *profile;
    int code = find_kind(device, kind, into, &d, &profile);
    return code == OK ? profile_info_v(into, profile) : code;
}

API nvmlDeviceGetGpuInstanceProfileInfoByIdV(handle device, unsigned id, void *into)
{
    struct device d;
    const struct profile *profile;
    int code = find_id(device, id, into, &d, &profile);
    return code == OK ? profile_info_v(into, profile) : code;
}

API nvmlDeviceGetGpuInstanceRemainingCapacity(handle device, unsigned id, unsigned *into)
{
    struct device d;
    int code = gpu_open(device, into, &d);
    if (code != OK) return code;
    if (!d.page.mig_capable) return NOT_SUPPORTED;
    const struct profile *profile = profile_by_id(&d.page, id);
    if (!profile) return INVALID_ARGUMENT;
    *into = still_free(&d.page, profile);
    return OK;
}

static int placements(handle device, unsigned id, struct placement *into, unsigned *count)
{
    struct device d;
    const struct profile *profile;
    int code = find_id(device, id, count, &d, &profile);
    if (code == OK) *count = list_places(places_on(&d.page, profile), into);
    return code;
}

API nvmlDeviceGetGpuInstancePossiblePlacements(handle device, unsigned id, struct placement *into, unsigned *count)
{
    int code = library_ready();
    if (code != OK) return code;
    return into ? placements(device, id, into, count) : INVALID_ARGUMENT;
}

/* Unlike the first version, this one returns their number to callers without a buffer. */
API nvmlDeviceGetGpuInstancePossiblePlacements_v2(handle device, unsigned id, struct placement *into, unsigned *count)
{
    return placements(device, id, into, count);
}

API nvmlDeviceGetGpuInstances(handle device, unsigned id, handle *into, unsigned *count)
{
    struct device d;
    const struct profile *profile;
    int code = find_id(device, id, count, &d, &profile);
    if (code != OK || !into) return code == OK ? INVALID_ARGUMENT : code;
    *count = 0;
    for (unsigned i = 0; i < gpu_instance_count(&d.page); i++) {
        const struct instance *instance = &d.page.instances[i];
        int wanted = instance_profile(&d.page, instance) == profile && is_gpu_instance(&d.page, instance);
        if (wanted) into[(*count)++] = gpu_instance_handle(d.card, instance);
    }
    return OK;
}

API nvmlDeviceGetGpuInstanceById(handle device, unsigned id, handle *into)
{
    struct device d;
    int code = gpu_open(device, into, &d);
    if (code != OK) return code;
    const struct instance *instance = instance_by_number(&d.page, id);
    if (!instance) return NOT_FOUND;
    *into = gpu_instance_handle(d.card, instance);
    return OK;
}

API nvmlGpuInstanceGetInfo(handle instance, struct gpu_instance_info *into)
{
    struct device d;
    int code = gpu_instance_open(instance, into, &d);
    if (code == OK)
        *into = (struct gpu_instance_info){
            device_handle(d.card), d.instance->gpu_instance, instance_profile(&d.page, d.instance)->id,
            {d.instance->start, d.instance->slices},
        };
    return code;
}
