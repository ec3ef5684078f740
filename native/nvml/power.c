/* Power, energy and heat. */
#include "library.h"

enum { SENSOR_GPU = 0, THERMAL_ALL = 15, CONTROLLER_GPU = 1, TARGET_GPU = 1 };

SHARED_NUMBER(nvmlDeviceGetPowerUsage, unsigned, page->power_mw)
SHARED_NUMBER(nvmlDeviceGetEnforcedPowerLimit, unsigned, page->power_limit_mw)
SHARED_NUMBER(nvmlDeviceGetPowerManagementLimit, unsigned, page->power_limit_mw)
SHARED_NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, unsigned, page->power_default_mw)
SHARED_NUMBER(nvmlDeviceGetPowerManagementMode, unsigned, 1)
NUMBER(nvmlDeviceGetPowerSource, unsigned, 0)
SHARED_NUMBER(nvmlDeviceGetTotalEnergyConsumption, uint64_t, page->energy_mj)

API nvmlDeviceGetPowerManagementLimitConstraints(handle device, unsigned *least, unsigned *most)
{
    struct device d;
    int code = shared_open(device, least, &d);
    if (code != OK || !most) return code == OK ? INVALID_ARGUMENT : code;
    *least = d.page.power_min_mw;
    *most = d.page.power_max_mw;
    return OK;
}

API nvmlDeviceGetPowerMizerMode_v1(handle device, unsigned into[3])
{
    enum { EVERY_MODE = 7 };
    struct device d;
    int code = gpu_open(device, into, &d);
    if (code != OK) return code;
    into[0] = into[1] = 0;
    into[2] = EVERY_MODE;
    return OK;
}

API nvmlDeviceGetTemperature(handle device, unsigned sensor, unsigned *into)
{
    struct device d;
    int code = gpu_open(device, into, &d);
    if (code != OK) return code;
    if (sensor != SENSOR_GPU) return INVALID_ARGUMENT;
    *into = (unsigned)d.page.temperature;
    return OK;
}

API nvmlDeviceGetTemperatureV(handle device, struct temperature *into)
{
    struct device d;
    int code = gpu_open(device, into, &d);
    if (code != OK) return code;
    if (into->version != VERSION(*into, 1)) return VERSION_MISMATCH;
    if (into->sensor != SENSOR_GPU) return INVALID_ARGUMENT;
    into->degrees = d.page.temperature;
    return OK;
}

API nvmlDeviceGetMarginTemperature(handle device, struct versioned *into)
{
    struct device d;
    int code = gpu_open(device, into, &d);
    if (code != OK) return code;
    if (into->version != VERSION(*into, 1)) return VERSION_MISMATCH;
    if (!d.page.margins) return NOT_SUPPORTED;
    into->value = (uint32_t)d.page.temperature_margin;
    return OK;
}

API nvmlDeviceGetTemperatureThreshold(handle device, unsigned which, unsigned *into)
{
    enum { THRESHOLDS = 9 };
    struct device d;
    int code = gpu_open(device, into, &d);
    if (code != OK) return code;
    if (which >= THRESHOLDS) return INVALID_ARGUMENT;
    const unsigned known[] = {
        d.page.temperature_shutdown, d.page.temperature_slowdown,
        d.page.temperature_memory_max, d.page.temperature_gpu_max,
    };
    if (which >= sizeof known / sizeof *known || !known[which]) return NOT_SUPPORTED;
    *into = known[which];
    return OK;
}

API nvmlDeviceGetThermalSettings(handle device, unsigned sensor, struct thermal_settings *into)
{
    struct device d;
    int code = gpu_open(device, into, &d);
    if (code != OK) return code;
    if (sensor != SENSOR_GPU && sensor != THERMAL_ALL) return INVALID_ARGUMENT;
    clear(into, sizeof *into);
    into->count = 1;
    into->sensor[0] = (struct thermal_sensor){
        CONTROLLER_GPU, 0, (int32_t)d.page.temperature_gpu_max, d.page.temperature, TARGET_GPU,
    };
    return OK;
}

enum { POLICY_POWER, POLICY_THERMAL, POLICY_BOARD = 3, POLICY_LOW_USE, POLICY_LAST };
enum { POLICY_APPLICATION_CLOCKS = 10, POLICY_BASE_CLOCKS };

API nvmlDeviceGetViolationStatus(handle device, unsigned policy, struct violation *into)
{
    struct device d;
    int code = gpu_open(device, into, &d);
    if (code != OK) return code;
    const struct page *page = &d.page;
    into->time = sys_nanoseconds(0) / 1000;
    into->violated = 0;
    if (policy == POLICY_POWER) into->violated = page->throttle_power_ns;
    else if (policy == POLICY_THERMAL) into->violated = page->throttle_thermal_ns;
    else if (policy == POLICY_BOARD) into->violated = page->throttle_hardware_ns;
    else if (policy == POLICY_LOW_USE) into->violated = page->idle_ns;
    else if (policy == POLICY_APPLICATION_CLOCKS || policy == POLICY_BASE_CLOCKS)
        into->violated = page->throttle_power_ns + page->throttle_thermal_ns + page->throttle_hardware_ns;
    else if (policy > POLICY_LAST) return INVALID_ARGUMENT;
    return OK;
}
