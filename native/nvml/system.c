/* The machine: its driver, and what holds for all of its cards. */
#include "library.h"

/* The first card whose page can be read speaks for the driver. */
static int any_page(struct page *into)
{
    int code = library_ready();
    if (code != OK) return code;
    for (unsigned card = 0; card < card_count(); card++)
        if ((code = card_page(card, into)) == OK) return OK;
    return code;
}

static int system_page(const void *into, struct page *page)
{
    int code = any_page(page);
    return code != UNINITIALIZED && !into ? INVALID_ARGUMENT : code;
}

#define SYSTEM_NUMBER(function, value_) \
    API function(unsigned *into) \
    { \
        struct page page; \
        int code = system_page(into, &page); \
        if (code == OK) *into = (unsigned)(value_); \
        return code; \
    }

SYSTEM_NUMBER(nvmlSystemGetCudaDriverVersion, page.cuda)
SYSTEM_NUMBER(nvmlSystemGetCudaDriverVersion_v2, page.cuda)
SYSTEM_NUMBER(nvmlSystemGetNvlinkBwMode, 0)
SYSTEM_NUMBER(nvmlSystemGetConfComputeGpusReadyState, 0)
SYSTEM_NUMBER(nvmlUnitGetCount, 0)
SYSTEM_NUMBER(nvmlGetExcludedDeviceCount, 0)
SYSTEM_NUMBER(nvmlGetBlacklistDeviceCount, 0)

API nvmlSystemGetDriverVersion(char *into, unsigned size)
{
    struct page page;
    int code = system_page(into, &page);
    return code == OK ? answer_text(into, size, page.driver) : code;
}

/* The one question that may come before nvmlInit. */
API nvmlSystemGetNVMLVersion(char *into, unsigned size)
{
    struct page page;
    char version[sizeof page.driver + 16];
    if (!into) return INVALID_ARGUMENT;
    int code = library_start();
    if (code != OK) return code;
    code = any_page(&page);
    library_stop();
    if (code != OK) return code;
    size_t end = text_add_number(version, 0, page.cuda / 1000, sizeof version);
    end = text_add(version, end, ".", sizeof version);
    text_add(version, end, page.driver, sizeof version);
    return answer_text(into, size, version);
}

API nvmlSystemGetDriverBranch(struct branch *into, unsigned size)
{
    struct page page;
    int code = system_page(into, &page);
    if (code != OK) return code;
    if (into->version != VERSION(*into, 1)) return VERSION_MISMATCH;
    return answer_text(into->name, size < sizeof into->name ? size : sizeof into->name, page.branch);
}

API nvmlSystemGetProcessName(unsigned pid, char *into, unsigned size)
{
    char name[PROCESS_NAME];
    int code = library_ready();
    if (code != OK) return code;
    if (!into || !size) return INVALID_ARGUMENT;
    if (!process_name((int)pid, name, sizeof name)) return NOT_FOUND;
    text_copy(into, name, size);
    return OK;
}

API nvmlSystemGetHicVersion(unsigned *count, void *into)
{
    int code = library_ready();
    return code == OK ? answer_count(count, into, 0) : code;
}

/* Confidential computing: cards from Hopper on could, and none does. */
enum { FIRST_CAPABLE = 900, USUAL_ADVANTAGE = 60 };

API nvmlSystemGetConfComputeCapabilities(struct compute_caps *into)
{
    struct page page;
    int code = system_page(into, &page);
    if (code == OK) *into = (struct compute_caps){0, page.capability >= FIRST_CAPABLE};
    return code;
}

API nvmlSystemGetConfComputeState(struct compute_state *into)
{
    struct page page;
    int code = system_page(into, &page);
    if (code == OK) clear(into, sizeof *into);
    return code;
}

API nvmlSystemGetConfComputeSettings(struct compute_settings *into)
{
    struct page page;
    int code = system_page(into, &page);
    if (code != OK) return code;
    if (into->version != VERSION(*into, 1)) return VERSION_MISMATCH;
    into->environment = into->feature = into->tools = into->multi_gpu = 0;
    return OK;
}

API nvmlSystemGetConfComputeKeyRotationThresholdInfo(struct rotation *into)
{
    struct page page;
    int code = system_page(into, &page);
    if (code != OK) return code;
    if (into->version != VERSION(*into, 1)) return VERSION_MISMATCH;
    into->advantage = USUAL_ADVANTAGE;
    return OK;
}

/* The cards that one of the machine's processors is near to. */
API nvmlSystemGetTopologyGpuSet(unsigned cpu, unsigned *count, handle *into)
{
    struct page page;
    unsigned found = 0;
    int code = system_page(count, &page);
    if (code != OK) return code;
    for (unsigned card = 0; card < card_count(); card++)
        if (card_page(card, &page) == OK && cpu >= page.first_cpu && cpu - page.first_cpu < page.cpus) {
            if (into && found < *count) into[found] = device_handle(card);
            found++;
        }
    if (into && *count < found) return INSUFFICIENT_SIZE;
    *count = found;
    return OK;
}
