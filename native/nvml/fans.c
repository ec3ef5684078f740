/* Fans of the card itself. All of them turn alike, and only the card decides how fast. */
#include "library.h"

NUMBER(nvmlDeviceGetNumFans, unsigned, page->fans)
NUMBER_IF(nvmlDeviceGetFanSpeed, unsigned, page->fans, page->fan_speed)

/* Of a fan by its number: a card without fans knows no number. */
static int one_fan(handle device, unsigned fan, unsigned *into)
{
    struct device d;
    int code = gpu_open(device, device, &d);
    if (code != OK) return code;
    if (fan >= d.page.fans || !into) return INVALID_ARGUMENT;
    *into = d.page.fan_speed;
    return OK;
}

API nvmlDeviceGetFanSpeed_v2(handle device, unsigned fan, unsigned *into) { return one_fan(device, fan, into); }
API nvmlDeviceGetTargetFanSpeed(handle device, unsigned fan, unsigned *into) { return one_fan(device, fan, into); }

/* What would be needed to set a speed. */
static int not_settable(handle device)
{
    struct device d;
    int code = gpu_open(device, device, &d);
    if (code != OK) return code;
    return d.page.fans ? NOT_SUPPORTED : INVALID_ARGUMENT;
}

API nvmlDeviceGetMinMaxFanSpeed(handle device) { return not_settable(device); }
API nvmlDeviceGetFanControlPolicy_v2(handle device) { return not_settable(device); }
