/* MIG by hand: the owner of the card divides it, and shows the result on its page before it answers (see computing.c too). */
#include "mig.h"

enum { ANYWHERE = 255 };

API nvmlDeviceSetMigMode(handle device, unsigned mode, unsigned *activation)
{
    struct device d;
    int code = gpu_open(device, activation, &d);
    if (code != OK) return code;
    if (!d.page.mig_capable) return NOT_SUPPORTED;
    if (mode > 1) return INVALID_ARGUMENT;
    code = card_set(&d.page, "mig_mode", mode, 0);
    *activation = (unsigned)code;
    return code == IN_USE && mode ? OK : code; /* it would be on after a reset */
}

/* The handle of the instance that the page has now and did not have before. */
static int find_new(const struct device *before, handle *into)
{
    struct page now;
    int code = card_page(before->card, &now);
    if (code != OK) return code;
    for (unsigned i = 0; i < gpu_instance_count(&now); i++)
        if (!instance_by_number(&before->page, now.instances[i].gpu_instance)) {
            *into = gpu_instance_handle(before->card, &now.instances[i]);
            return OK;
        }
    return UNKNOWN;
}

static int create(handle device, unsigned profile, unsigned start, handle *into)
{
    struct device d;
    int code = gpu_open(device, into, &d);
    if (code != OK) return code;
    if (!d.page.mig_mode) return NOT_SUPPORTED;
    if (!profile_by_id(&d.page, profile)) return INVALID_ARGUMENT;
    code = card_set(&d.page, "create_gpu_instance", profile, start);
    return code == OK ? find_new(&d, into) : code;
}

API nvmlDeviceCreateGpuInstance(handle device, unsigned profile, handle *into) { return create(device, profile, ANYWHERE, into); }

API nvmlDeviceCreateGpuInstanceWithPlacement(handle device, unsigned profile, const struct placement *where, handle *into)
{
    int code = library_ready();
    if (code != OK) return code;
    return where && where->start < ANYWHERE ? create(device, profile, where->start, into) : INVALID_ARGUMENT;
}

API nvmlGpuInstanceDestroy(handle instance)
{
    struct device d;
    int code = gpu_instance_open(instance, instance, &d);
    return code == OK ? card_set(&d.page, "destroy_gpu_instance", d.instance->gpu_instance, 0) : code;
}
