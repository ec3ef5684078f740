/* Which card this is, and what was built into it. */
#include "mig.h"

TEXT(nvmlDeviceGetSerial, page->serial)
TEXT(nvmlDeviceGetBoardPartNumber, page->part_number)
TEXT(nvmlDeviceGetVbiosVersion, page->vbios)
SHARED_TEXT(nvmlDeviceGetInforomImageVersion, page->inforom_image)

NUMBER(nvmlDeviceGetMinorNumber, unsigned, page->minor_number)
SHARED_NUMBER(nvmlDeviceGetBoardId, unsigned, page->board_id)
NUMBER(nvmlDeviceGetModuleId, unsigned, page->module_id)
SHARED_NUMBER(nvmlDeviceGetMultiGpuBoard, unsigned, 0)
NUMBER(nvmlDeviceGetNumGpuCores, unsigned, page->cores)
NUMBER(nvmlDeviceGetVirtualizationMode, unsigned, page->virtualization)
NUMBER(nvmlDeviceGetPersistenceMode, unsigned, page->persistence)
NUMBER(nvmlDeviceGetComputeMode, unsigned, page->compute_mode)
SHARED_NUMBER(nvmlDeviceGetDisplayActive, unsigned, 0)
SHARED_NUMBER(nvmlDeviceGetDisplayMode, unsigned, 1) /* as data centre cards return, which have no display at all */
SHARED_NUMBER(nvmlDeviceGetInforomConfigurationChecksum, unsigned, 0)
FIGURE(any_open, nvmlDeviceGetC2cModeInfoV, unsigned, 1, text_equal(page->c2c, "Enabled"))

enum { BRAND_NVIDIA = 14, FIRST_IRQ = 41 };

static int has_word(const char *text, const char *word)
{
    size_t size = text_length(word);
    for (; *text; text++) {
        size_t same = 0;
        while (same < size && text[same] == word[same]) same++;
        if (same == size) return 1;
    }
    return 0;
}

/* By the word that the tool prints for it. */
static unsigned brand(const char *name)
{
    static const struct { const char *name; unsigned number; } KNOWN[] = {
        {"Quadro", 1}, {"Tesla", 2}, {"GRID", 4}, {"GeForce", 5}, {"Titan", 6}, {"Quadro RTX", 12}, {"NVIDIA RTX", 13},
        {"GeForce RTX", 15}, {"Titan RTX", 16},
    };
    for (unsigned i = 0; i < sizeof KNOWN / sizeof *KNOWN; i++)
        if (text_equal(name, KNOWN[i].name)) return KNOWN[i].number;
    return BRAND_NVIDIA;
}

NUMBER(nvmlDeviceGetBrand, unsigned, brand(page->brand))
NUMBER(nvmlDeviceGetIrqNum, unsigned, FIRST_IRQ + page->index)

/* By the word that the catalog has for it; the numbers have gaps. */
static unsigned architecture(const char *name)
{
    static const struct { const char *name; unsigned number; } KNOWN[] = {
        {"Kepler", 2}, {"Maxwell", 3}, {"Pascal", 4}, {"Volta", 5}, {"Turing", 6}, {"Ampere", 7}, {"Ada", 8},
        {"Hopper", 9}, {"Blackwell", 10}, {"Rubin", 13},
    };
    for (unsigned i = 0; i < sizeof KNOWN / sizeof *KNOWN; i++)
        if (has_word(name, KNOWN[i].name)) return KNOWN[i].number;
    return ~0u;
}

NUMBER(nvmlDeviceGetArchitecture, unsigned, architecture(page->architecture))

API nvmlDeviceGetIndex(handle device, unsigned *into)
{
    struct device d;
    int code = any_open(device, into, &d);
    if (code == OK) *into = d.instance ? (unsigned)(d.instance - d.page.instances) : d.card;
    return code;
}

API nvmlDeviceGetUUID(handle device, char *into, unsigned size)
{
    struct device d;
    int code = device_open(device, &d);
    return code == OK ? answer_text(into, size, d.instance ? d.instance->uuid : d.page.uuid) : code;
}

API nvmlDeviceGetName(handle device, char *into, unsigned size)
{
    struct device d;
    char name[sizeof d.page.product + sizeof d.page.profiles[0].name + 16];
    int code = device_open(device, &d);
    if (code != OK) return code;
    size_t end = text_add(name, 0, d.page.product, sizeof name);
    if (d.instance) {
        end = text_add(name, end, " MIG ", sizeof name);
        name_compute(name, end, sizeof name, instance_profile(&d.page, d.instance), compute_of(&d.page, d.instance).slices);
    }
    return answer_text(into, size, name);
}

API nvmlDeviceGetCudaComputeCapability(handle device, int *major, int *minor)
{
    struct device d;
    int code = gpu_open(device, major, &d);
    if (code != OK || !minor) return code == OK ? INVALID_ARGUMENT : code;
    *major = (int)(d.page.capability / 100);
    *minor = (int)(d.page.capability % 100 / 10);
    return OK;
}

enum { INFOROM_OEM, INFOROM_ECC, INFOROM_OBJECTS = 4 };

API nvmlDeviceGetInforomVersion(handle device, unsigned object, char *into, unsigned size)
{
    struct device d;
    int code = shared_open(device, into, &d);
    if (code != OK) return code;
    if (object >= INFOROM_OBJECTS) return INVALID_ARGUMENT;
    const char *text = object == INFOROM_OEM ? d.page.inforom_oem : object == INFOROM_ECC ? d.page.inforom_ecc : "";
    return *text ? answer_text(into, size, text) : NOT_SUPPORTED;
}

API nvmlDeviceValidateInforom(handle device)
{
    struct device d;
    return gpu_open(device, device, &d);
}

API nvmlDeviceGetGspFirmwareVersion(handle device, char *into)
{
    enum { ROOM = 64 };
    struct device d;
    int code = gpu_open(device, into, &d);
    if (code == OK) text_copy(into, d.page.driver, ROOM);
    return code;
}

API nvmlDeviceGetGspFirmwareMode(handle device, unsigned *enabled, unsigned *preset)
{
    struct device d;
    int code = gpu_open(device, enabled, &d);
    if (code != OK || !preset) return code == OK ? INVALID_ARGUMENT : code;
    *enabled = *preset = 1;
    return OK;
}

API nvmlDeviceGetAddressingMode(handle device, struct versioned *into)
{
    struct device d;
    int code = gpu_open(device, into, &d);
    if (code != OK) return code;
    if (into->version != VERSION(*into, 1)) return VERSION_MISMATCH;
    into->value = text_equal(d.page.addressing, "HMM") ? 1 : text_equal(d.page.addressing, "ATS") ? 2 : 0;
    return OK;
}

API nvmlDeviceGetPdi(handle device, struct pdi *into)
{
    struct device d;
    int code = gpu_open(device, into, &d);
    if (code != OK) return code;
    if (into->version != VERSION(*into, 1)) return VERSION_MISMATCH;
    into->value = d.page.pdi;
    return OK;
}

API nvmlDeviceGetCapabilities(handle device, struct versioned *into)
{
    struct device d;
    int code = gpu_open(device, into, &d);
    if (code != OK) return code;
    if (into->version != VERSION(*into, 1)) return VERSION_MISMATCH;
    into->value = 0;
    return OK;
}

/* Older and newer layouts differ in names only, and a driver of this age fills in the word itself. */
API nvmlDeviceGetPlatformInfo(handle device, struct platform *into)
{
    struct device d;
    int code = gpu_open(device, into, &d);
    if (code != OK) return code;
    uint32_t version = into->version;
    if (version && version != VERSION(*into, 1) && version != VERSION(*into, 2)) return VERSION_MISMATCH;
    clear(into, sizeof *into);
    into->version = VERSION(*into, 2);
    into->host = 1;
    into->module = (uint8_t)d.page.module_id;
    return OK;
}

enum { SET_APPLICATION_CLOCKS, SET_AUTO_BOOST, RESTRICTIONS };

API nvmlDeviceGetAPIRestriction(handle device, unsigned which, unsigned *into)
{
    struct device d;
    int code = gpu_open(device, into, &d);
    if (code != OK) return code;
    if (which >= RESTRICTIONS) return INVALID_ARGUMENT;
    if (which == SET_APPLICATION_CLOCKS) return NOT_SUPPORTED;
    *into = 0;
    return OK;
}

API nvmlDeviceOnSameBoard(handle one, handle other, int *into)
{
    struct device a, b;
    int code = gpu_open(one, into, &a);
    if (code == OK) code = gpu_open(other, into, &b);
    if (code == OK) *into = a.card == b.card;
    return code;
}

#define FEATURES(function, bytes) \
    API function(handle device, void *into) \
    { \
        struct device d; \
        int code = gpu_open(device, into, &d); \
        if (code == OK) clear(into, bytes); \
        return code; \
    }

/* No licence is needed: the answers of all functions about licences. */
FEATURES(nvmlDeviceGetGridLicensableFeatures, 416)
FEATURES(nvmlDeviceGetGridLicensableFeatures_v2, 800)
FEATURES(nvmlDeviceGetGridLicensableFeatures_v3, 812)
FEATURES(nvmlDeviceGetGridLicensableFeatures_v4, 860)
