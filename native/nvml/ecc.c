/* Errors of the memory, and rows that were replaced. All errors that the simulation knows happen in the main memory. */
#include "library.h"

enum { CORRECTED, UNCORRECTED, ERROR_KINDS, COUNTERS = 2 };
enum { PLACE_MAIN_MEMORY = 2, PLACE_SRAM = 7, PLACES };

static uint64_t errors(const struct page *page, unsigned kind)
{
    return kind == CORRECTED ? page->ecc_corrected : page->ecc_uncorrected;
}

static int check_ecc(const struct page *page, unsigned kind, unsigned counter)
{
    if (kind >= ERROR_KINDS || counter >= COUNTERS) return INVALID_ARGUMENT;
    return counts_errors(page) ? OK : NOT_SUPPORTED;
}

/* A page whose card counts errors, for arguments that make sense. */
static int open_ecc(handle device, const void *into, struct device *d, unsigned kind, unsigned counter)
{
    int code = shared_open(device, into, d);
    return code == OK ? check_ecc(&d->page, kind, counter) : code;
}

API nvmlDeviceGetEccMode(handle device, unsigned *now, unsigned *pending)
{
    struct device d;
    int code = shared_open(device, now, &d);
    if (code == OK && !has_ecc(&d.page)) code = NOT_SUPPORTED;
    if (code != OK || !pending) return code == OK ? INVALID_ARGUMENT : code;
    *now = *pending = (unsigned)counts_errors(&d.page);
    return OK;
}

SHARED_NUMBER_IF(nvmlDeviceGetDefaultEccMode, unsigned, has_ecc(page), counts_errors(page))

API nvmlDeviceGetTotalEccErrors(handle device, unsigned kind, unsigned counter, uint64_t *into)
{
    struct device d;
    int code = open_ecc(device, into, &d, kind, counter);
    if (code == OK) *into = errors(&d.page, kind);
    return code;
}

API nvmlDeviceGetDetailedEccErrors(handle device, unsigned kind, unsigned counter, struct ecc_counts *into)
{
    struct device d;
    int code = open_ecc(device, into, &d, kind, counter);
    if (code == OK) *into = (struct ecc_counts){0, 0, errors(&d.page, kind), 0};
    return code;
}

API nvmlDeviceGetMemoryErrorCounter(handle device, unsigned kind, unsigned counter, unsigned place, uint64_t *into)
{
    struct device d;
    int code = any_open(device, into, &d);
    if (code == OK) code = check_ecc(&d.page, kind, counter);
    if (code != OK) return code;
    if (place >= PLACES) return INVALID_ARGUMENT;
    if (place != PLACE_MAIN_MEMORY && place != PLACE_SRAM) return NOT_SUPPORTED;
    *into = place == PLACE_MAIN_MEMORY && !d.instance ? errors(&d.page, kind) : 0; /* instances count their own: none */
    return OK;
}

API nvmlDeviceGetSramEccErrorStatus(handle device, struct ecc_sram *into)
{
    struct device d;
    int code = open_ecc(device, into, &d, CORRECTED, 0);
    if (code != OK) return code;
    if (into->version != VERSION(*into, 1)) return VERSION_MISMATCH;
    clear(into, sizeof *into);
    into->version = VERSION(*into, 1);
    return OK;
}

static int open_rows(handle device, const void *into, struct device *d)
{
    int code = shared_open(device, into, d);
    return code == OK && !remaps_rows(&d->page) ? NOT_SUPPORTED : code;
}

API nvmlDeviceGetRemappedRows(handle device, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
                              unsigned *failed)
{
    struct device d;
    int code = open_rows(device, corrected, &d);
    if (code != OK || !uncorrected || !pending || !failed) return code == OK ? INVALID_ARGUMENT : code;
    *corrected = *uncorrected = *pending = *failed = 0;
    return OK;
}

API nvmlDeviceGetRemappedRows_v2(handle device, struct remapped_rows *into)
{
    struct device d;
    int code = open_rows(device, into, &d);
    if (code == OK) clear(into, sizeof *into);
    return code;
}

API nvmlDeviceGetRowRemapperHistogram(handle device, struct histogram *into)
{
    struct device d;
    int code = open_rows(device, into, &d);
    if (code == OK) *into = (struct histogram){d.page.row_remap_banks, 0, 0, 0, 0};
    return code;
}

API nvmlDeviceGetRepairStatus(handle device, struct versioned_two *into)
{
    struct device d;
    int code = gpu_open(device, into, &d);
    if (code != OK) return code;
    if (into->version != VERSION(*into, 1)) return VERSION_MISMATCH;
    into->first = into->second = 0;
    return OK;
}

API nvmlDeviceGetUnrepairableMemoryFlag_v1(handle device, struct versioned *into)
{
    struct device d;
    int code = gpu_open(device, into, &d);
    if (code == OK) into->value = 0;
    return code;
}
