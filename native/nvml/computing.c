/* Compute instances: the parts of a GPU instance that are MIG devices. One may fill it, or several share it. */
#include "mig.h"

enum { ANYWHERE = 255, COMPUTE_KINDS = 8 };

API nvmlGpuInstanceGetComputeInstanceById(handle instance, unsigned id, handle *into)
{
    struct device d;
    int code = gpu_instance_open(instance, into, &d);
    if (code != OK) return code;
    for (unsigned i = 0; i < d.page.instance_count; i++) {
        const struct instance *found = &d.page.instances[i];
        if (found->gpu_instance != d.instance->gpu_instance || found->compute_instance != id) continue;
        *into = compute_instance_handle(d.card, found);
        return OK;
    }
    return NOT_FOUND;
}

API nvmlGpuInstanceGetComputeInstances(handle instance, unsigned kind, handle *into, unsigned *count)
{
    struct device d;
    int code = gpu_instance_open(instance, count, &d);
    if (code != OK) return code;
    *count = 0;
    for (unsigned i = 0; i < d.page.instance_count; i++) {
        const struct instance *found = &d.page.instances[i];
        if (found->gpu_instance != d.instance->gpu_instance || compute_of(&d.page, found).id != kind) continue;
        if (into) into[*count] = compute_instance_handle(d.card, found);
        ++*count;
    }
    return OK;
}

static int compute_instance_info(handle instance, struct compute_instance_info *into)
{
    struct device d;
    int code = compute_instance_open(instance, into, &d);
    if (code != OK) return code;
    struct compute kind = compute_of(&d.page, d.instance);
    *into = (struct compute_instance_info){
        device_handle(d.card), gpu_instance_handle(d.card, d.instance), d.instance->compute_instance, kind.id,
        {compute_start(&d.page, d.instance), kind.places.width},
    };
    return OK;
}

API nvmlComputeInstanceGetInfo(handle instance, struct compute_instance_info *into)
{
    return compute_instance_info(instance, into);
}

API nvmlComputeInstanceGetInfo_v2(handle instance, struct compute_instance_info *into)
{
    return compute_instance_info(instance, into);
}

static int find_kind(handle instance, unsigned kind, const void *into, struct device *d, struct compute *found)
{
    int code = gpu_instance_open(instance, into, d);
    if (code != OK) return code;
    return compute_kind(&d->page, instance_profile(&d->page, d->instance), kind, found) ? OK : NOT_SUPPORTED;
}

static int compute_profile(handle instance, unsigned kind, const void *into, struct device *d, struct compute_profile_info *info)
{
    struct compute found;
    int code = find_kind(instance, kind, into, d, &found);
    if (code != OK) return code;
    const struct profile *profile = instance_profile(&d->page, d->instance);
    *info = (struct compute_profile_info){
        kind, found.slices, found.places.count, found.sm,
        profile->copy_engines, profile->decoders, 0, profile->jpegs, profile->ofas,
    };
    return OK;
}

API nvmlGpuInstanceGetComputeInstanceProfileInfo(handle instance, unsigned kind, unsigned engines,
                                                 struct compute_profile_info *into)
{
    struct device d;
    struct compute_profile_info info;
    int code = compute_profile(instance, kind, into, &d, &info);
    if (code == OK && engines) code = INVALID_ARGUMENT;
    if (code == OK) *into = info;
    return code;
}

API nvmlGpuInstanceGetComputeInstanceProfileInfoV(handle instance, unsigned kind, unsigned engines,
                                                  struct compute_profile_info_v2 *into)
{
    struct device d;
    struct compute_profile_info info;
    int code = compute_profile(instance, kind, into, &d, &info);
    if (code != OK) return code;
    if (engines || into->version != VERSION(*into, 2)) return INVALID_ARGUMENT;
    into->info = info;
    size_t end = text_add(into->name, 0, "MIG ", sizeof into->name);
    name_compute(into->name, end, sizeof into->name, instance_profile(&d.page, d.instance), info.slices);
    return OK;
}

API nvmlGpuInstanceGetComputeInstanceRemainingCapacity(handle instance, unsigned kind, unsigned *into)
{
    struct device d;
    struct compute found;
    int code = find_kind(instance, kind, into, &d, &found);
    if (code == OK) *into = compute_free(&d.page, d.instance->gpu_instance, &found);
    return code;
}

API nvmlGpuInstanceGetComputeInstancePossiblePlacements(handle instance, unsigned kind, struct placement *into,
                                                        unsigned *count)
{
    struct device d;
    struct compute found;
    int code = find_kind(instance, kind, count, &d, &found);
    if (code == OK) *count = list_places(found.places, into);
    return code;
}

/* The handle of the compute instance that the page has now and did not have before. */
static int find_new(const struct device *before, handle *into)
{
    struct page now;
    int code = card_page(before->card, &now);
    if (code != OK) return code;
    for (unsigned i = 0, old = 0; i < now.instance_count; i++) {
        const struct instance *found = &now.instances[i];
        if (found->gpu_instance != before->instance->gpu_instance) continue;
        for (old = 0; old < before->page.instance_count; old++)
            if (before->page.instances[old].gpu_instance == found->gpu_instance
                && before->page.instances[old].compute_instance == found->compute_instance) break;
        if (old < before->page.instance_count) continue;
        *into = compute_instance_handle(before->card, found);
        return OK;
    }
    return UNKNOWN;
}

static int create(handle instance, unsigned kind, unsigned start, handle *into)
{
    struct device d;
    int code = gpu_instance_open(instance, into, &d);
    if (code != OK) return code;
    if (kind >= COMPUTE_KINDS) return INVALID_ARGUMENT;
    code = card_set(&d.page, "create_compute_instance", d.instance->gpu_instance, (kind + 1) | (int64_t)start << 8);
    return code == OK ? find_new(&d, into) : code;
}

API nvmlGpuInstanceCreateComputeInstance(handle instance, unsigned kind, handle *into)
{
    return create(instance, kind, ANYWHERE, into);
}

API nvmlGpuInstanceCreateComputeInstanceWithPlacement(handle instance, unsigned kind, const struct placement *where, handle *into)
{
    int code = library_ready();
    if (code != OK) return code;
    return where && where->start < ANYWHERE ? create(instance, kind, where->start, into) : INVALID_ARGUMENT;
}

API nvmlComputeInstanceDestroy(handle instance)
{
    struct device d;
    int code = compute_instance_open(instance, instance, &d);
    if (code != OK) return code;
    return card_set(&d.page, "destroy_compute_instance", d.instance->gpu_instance, d.instance->compute_instance);
}
