/* What data centre cards do not have, with the code that they return. */
#include "library.h"

SHARED_ALWAYS_VERSION(nvmlDeviceGetFanSpeedRPM, 0x100000cu, INVALID_ARGUMENT)
SHARED_ALWAYS_VERSION(nvmlDeviceGetCoolerInfo, 0x1000010u, NOT_SUPPORTED)

ALWAYS_VERSION(nvmlDeviceGetNvLinkInfo, 0x1000008u, NOT_SUPPORTED)
ALWAYS_VERSION(nvmlDeviceGetSramUniqueUncorrectedEccErrorCounts, 0x1000010u, NOT_SUPPORTED)
ALWAYS_VERSION(nvmlDeviceWorkloadPowerProfileGetCurrentProfiles, 0x1000064u, NOT_SUPPORTED)
ALWAYS_VERSION(nvmlDeviceWorkloadPowerProfileGetProfilesInfo, 0x1002bf8u, NOT_SUPPORTED)

ALWAYS(nvmlDeviceGetAutoBoostedClocksEnabled, NOT_SUPPORTED)
ALWAYS(nvmlDeviceGetBridgeChipInfo, NOT_SUPPORTED)
ALWAYS(nvmlDeviceGetClkMonStatus, NOT_SUPPORTED)
SHARED_ALWAYS(nvmlDeviceGetDramEncryptionMode, NOT_SUPPORTED)
ALWAYS(nvmlDeviceGetHostname_v1, NOT_SUPPORTED)
ALWAYS(nvmlDeviceGetNumaNodeId, NOT_SUPPORTED) /* of its memory, where processors can reach it */
ALWAYS(nvmlDeviceGetNvlinkBwMode, NOT_SUPPORTED)
ALWAYS(nvmlDeviceGetNvlinkSupportedBwModes, NOT_SUPPORTED)
ALWAYS(nvmlDeviceGetRetiredPagesPendingStatus, NOT_SUPPORTED) /* rows are remapped instead */

/* Modes of which callers want the current one, the pending one, or both; the driver model is another operating system's. */
#define NO_MODE(open, function) \
    API function(handle device, const void *now, const void *pending) \
    { \
        struct device d; \
        int code = open(device, now ? now : pending, &d); \
        return code == OK ? NOT_SUPPORTED : code; \
    }

NO_MODE(gpu_open, nvmlDeviceGetDriverModel)
NO_MODE(gpu_open, nvmlDeviceGetDriverModel_v2)
NO_MODE(shared_open, nvmlDeviceGetGpuOperationMode)

/* A card is not divided among virtual machines. */
ALWAYS(nvmlDeviceGetHostVgpuMode, NOT_SUPPORTED)
ALWAYS(nvmlDeviceGetPgpuMetadataString, NOT_SUPPORTED)
ALWAYS(nvmlDeviceGetVgpuMetadata, NOT_SUPPORTED)
ALWAYS(nvmlDeviceGetVgpuSchedulerCapabilities, NOT_SUPPORTED)
ALWAYS(nvmlDeviceGetVgpuSchedulerLog, NOT_SUPPORTED)
ALWAYS(nvmlDeviceGetVgpuSchedulerState, NOT_SUPPORTED)
SHARED_ALWAYS(nvmlDeviceGetVgpuHeterogeneousMode, NOT_SUPPORTED)

ALWAYS(nvmlDeviceGetConfComputeGpuCertificate, UNKNOWN)
ALWAYS(nvmlDeviceGetConfComputeGpuAttestationReport, UNKNOWN)
SHARED_ALWAYS(nvmlDeviceGetLastBBXFlushTime, NOT_READY)

/* There are no units, the boxes of an older generation: every handle of one is wrong. */
#define NO_UNIT(function) \
    API function(void) \
    { \
        int code = library_ready(); \
        return code == OK ? INVALID_ARGUMENT : code; \
    }

NO_UNIT(nvmlUnitGetHandleByIndex)
NO_UNIT(nvmlUnitGetUnitInfo)
NO_UNIT(nvmlUnitGetLedState)
NO_UNIT(nvmlUnitGetPsuInfo)
NO_UNIT(nvmlUnitGetTemperature)
NO_UNIT(nvmlUnitGetFanSpeedInfo)
NO_UNIT(nvmlUnitGetDevices)
NO_UNIT(nvmlUnitSetLedState)
NO_UNIT(nvmlGetExcludedDeviceInfoByIndex)
NO_UNIT(nvmlGetBlacklistDeviceInfoByIndex)
