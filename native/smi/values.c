#include <stdio.h>
#include <string.h>
#include "values.h"

static const struct page *page_of(const struct subject *of) { return &of->gpu->page; }
static const void *field(const struct subject *of, const struct value *value) { return (const char *)page_of(of) + value->at; }

#define READING(name) enum known name(const struct subject *of, const struct value *value, char *into)
#define UNUSED (void)of, (void)value, (void)into
#define WRITE(...) (snprintf(into, CELL, __VA_ARGS__), KNOWN)

/* What cards can differ in. */
static int averages_power(const struct page *page) { return page->capability > 800; }
static int retires_pages(const struct page *page) { return has_ecc(page) && page->capability < 800; }
static int joins_fabric(const struct page *page) { return page->fabric && page->capability >= 900; }
static int has_health(const struct page *page) { return page->fabric && page->link_version >= 5; }

/* Values of any field. */

READING(number) { return WRITE("%u", *(const uint32_t *)field(of, value)); }
READING(degrees) { return WRITE("%d", *(const int32_t *)field(of, value)); }
READING(bytes_up) { return WRITE("%llu", mebibytes(*(const uint64_t *)field(of, value))); }
READING(microseconds) { return WRITE("%llu", (unsigned long long)(*(const uint64_t *)field(of, value) / 1000)); }
READING(on_off) { return WRITE("%s", *(const uint32_t *)field(of, value) ? "Enabled" : "Disabled"); }
READING(constant) { (void)of; return WRITE("%s", value->text); }
READING(unavailable) { UNUSED; return UNAVAILABLE; }
READING(deprecated) { UNUSED; return DEPRECATED; }
READING(reason) { return WRITE("%s", page_of(of)->reasons & value->at ? "Active" : "Not Active"); }

READING(watts)
{
    uint32_t milliwatts = *(const uint32_t *)field(of, value);
    return WRITE("%.2f", milliwatts / 1000.0);
}

READING(text_field)
{
    const char *text = field(of, value);
    if (!*text || !strcmp(text, "N/A")) return UNAVAILABLE;
    return WRITE("%s", text);
}

/* What only cards with ECC, with spare rows, or with retired pages have. Instances hide the rows. */
READING(ecc_constant) { return counts_errors(page_of(of)) ? WRITE("%s", value->text) : UNAVAILABLE; }
READING(ecc_count) { return counts_errors(page_of(of)) ? WRITE("%llu", (unsigned long long)*(const uint64_t *)field(of, value)) : UNAVAILABLE; }
READING(v_ecc_mode) { (void)value; return has_ecc(page_of(of)) ? WRITE("%s", counts_errors(page_of(of)) ? "Enabled" : "Disabled") : UNAVAILABLE; }
READING(remap_constant) { return remaps_rows(page_of(of)) ? WRITE("%s", value->text) : UNAVAILABLE; }
READING(remap_banks) { (void)value; return remaps_rows(page_of(of)) ? WRITE("%u", page_of(of)->row_remap_banks) : UNAVAILABLE; }
READING(retired_constant) { return retires_pages(page_of(of)) ? WRITE("%s", value->text) : UNAVAILABLE; }

/* Identity. */

READING(v_timestamp) { (void)of, (void)value; moment_text(into); return KNOWN; }
READING(v_gpu_count) { (void)value; return WRITE("%u", of->machine->attached); }
READING(v_gpu_index) { (void)value; return WRITE("%u", of->gpu->index); }
READING(v_bus_id) { (void)value; bus_id(page_of(of), into); return KNOWN; }
READING(v_pci_domain) { (void)value; return WRITE("%04X", page_of(of)->pci_domain); }
READING(v_pci_bus) { (void)value; return WRITE("%02X", page_of(of)->pci_bus); }
READING(v_pci_device) { (void)value; return WRITE("%02X", page_of(of)->pci_device); }
READING(v_hex_device) { (void)value; return WRITE("%08X", page_of(of)->pci_id); }
READING(v_hex_subsystem) { (void)value; return WRITE("%08X", page_of(of)->pci_subsystem); }
READING(v_brand) { (void)value; return WRITE("%s", page_of(of)->brand[0] ? page_of(of)->brand : "NVIDIA"); }
READING(v_pci_base_class) { (void)value; return WRITE("%X", pci_class(page_of(of)) >> 8); }
READING(v_pci_sub_class) { (void)value; return WRITE("%X", pci_class(page_of(of)) & 0xff); }
READING(v_host_generation)
{
    (void)value;
    return has_host_generation(page_of(of)) ? WRITE("%u", page_of(of)->pcie_generation) : UNAVAILABLE;
}
READING(v_pdi) { (void)value; return WRITE("0x%016llx", (unsigned long long)page_of(of)->pdi); }
READING(v_board_id) { (void)value; return WRITE("0x%x", page_of(of)->board_id); }
READING(v_cuda) { (void)value; return WRITE("%u.%u", page_of(of)->cuda / 1000, page_of(of)->cuda % 1000 / 10); }
READING(v_capability) { (void)value; return WRITE("%u.%u", page_of(of)->capability / 100, page_of(of)->capability % 100 / 10); }
READING(v_virtualization) { (void)value; return WRITE("%s", page_of(of)->virtualization ? "Pass-Through" : "None"); }
READING(v_gsp) { (void)value; return page_of(of)->capability >= 750 ? WRITE("%s", page_of(of)->driver) : UNAVAILABLE; }

READING(v_mig_mode)
{
    (void)value;
    if (!page_of(of)->mig_capable) return UNAVAILABLE;
    return WRITE("%s", page_of(of)->mig_mode ? "Enabled" : "Disabled");
}

/* State. */

READING(v_pstate) { (void)value; return WRITE("P%u", page_of(of)->pstate); }
READING(v_reasons) { (void)value; return WRITE("0x%016llX", (unsigned long long)page_of(of)->reasons); }
READING(v_compute_mode) { (void)value; return WRITE("%s", compute_mode_name(page_of(of)->compute_mode)); }
READING(v_fan_speed) { (void)value; return page_of(of)->fans ? WRITE("%u", page_of(of)->fan_speed) : UNAVAILABLE; }
READING(application_clock) { return has_application_clocks(page_of(of)) ? number(of, value, into) : UNAVAILABLE; }
READING(v_application_memory_clock) { return has_application_clocks(page_of(of)) ? v_memory_clock_max(of, value, into) : UNAVAILABLE; }
READING(v_memory_clock_max) { (void)value; return WRITE("%u", page_of(of)->memory_clocks[0]); }

/* Where processors reach all of the memory, there is no window. */
READING(v_bar1_total) { (void)value; return page_of(of)->bar1_total ? WRITE("%llu", mebibytes(page_of(of)->bar1_total)) : UNAVAILABLE; }

READING(v_bar1_used)
{
    (void)value;
    return page_of(of)->bar1_total ? WRITE("%llu", (unsigned long long)(page_of(of)->bar1_used >> 20)) : UNAVAILABLE;
}

READING(v_bar1_free)
{
    (void)value;
    if (!page_of(of)->bar1_total) return UNAVAILABLE;
    return WRITE("%llu", (unsigned long long)((page_of(of)->bar1_total >> 20) - (page_of(of)->bar1_used >> 20)));
}

READING(v_memory_free)
{
    (void)value;
    uint64_t taken = page_of(of)->memory_used + page_of(of)->memory_reserved, total = page_of(of)->memory_total;
    return WRITE("%llu", mebibytes(total > taken ? total - taken : 0));
}

/* A card that is cut into instances shows no utilisation. */
READING(v_usage) { (void)value; return page_of(of)->mig_mode ? UNAVAILABLE : WRITE("%u", page_of(of)->usage); }
READING(v_memory_usage) { (void)value; return page_of(of)->mig_mode ? UNAVAILABLE : WRITE("%u", page_of(of)->memory_usage); }
READING(v_engine_usage) { (void)value; return page_of(of)->mig_mode ? UNAVAILABLE : WRITE("0"); }

/* Temperatures: some cards show the distance to a limit, others the limit. */

READING(v_margin) { (void)value; return page_of(of)->margins ? WRITE("%d", page_of(of)->temperature_margin) : UNAVAILABLE; }

READING(margin_to)
{
    uint32_t limit = *(const uint32_t *)field(of, value);
    return limit ? WRITE("%lld", (long long)page_of(of)->temperature_gpu_max - (long long)limit) : UNAVAILABLE;
}

READING(v_absolute_limit)
{
    uint32_t limit = *(const uint32_t *)field(of, value);
    return limit ? WRITE("%u", limit) : UNAVAILABLE;
}

READING(v_memory_temperature)
{
    (void)value;
    return page_of(of)->temperature_memory_max ? WRITE("%d", page_of(of)->temperature_memory) : UNAVAILABLE;
}

READING(v_memory_limit_margin) { (void)value; return page_of(of)->temperature_memory_max ? WRITE("0") : UNAVAILABLE; }

/* Power. */

READING(v_power_average)
{
    (void)value;
    return averages_power(page_of(of)) ? WRITE("%.2f", page_of(of)->power_mw / 1000.0) : UNAVAILABLE;
}

READING(v_memory_power)
{
    (void)value;
    return page_of(of)->power_memory_mw ? WRITE("%.2f", page_of(of)->power_memory_mw / 1000.0) : UNAVAILABLE;
}

/* The fabric between cards: plain words, without brackets, where there is none. */

static enum known fabric(int there, const char *words, char *into) { return WRITE("%s", there ? words : "N/A"); }
READING(v_fabric_state) { (void)value; return fabric(joins_fabric(page_of(of)), "Completed", into); }
READING(v_fabric_status) { (void)value; return fabric(joins_fabric(page_of(of)), "Success", into); }
READING(v_fabric_clique) { (void)value; return fabric(joins_fabric(page_of(of)), "0", into); }
READING(v_fabric_cluster) { (void)value; return fabric(joins_fabric(page_of(of)), "00000000-0000-0000-0000-000000000000", into); }
READING(v_fabric_health) { return fabric(has_health(page_of(of)), value->text, into); }

/* A process that was recorded, of which there is always one. */

READING(v_account_pid) { (void)value; return WRITE("%d", of->account->pid); }
READING(v_account_usage) { (void)value; return WRITE("%u", account_usage(of->account, of->account->busy)); }
READING(v_account_memory_usage) { (void)value; return WRITE("%u", account_usage(of->account, of->account->memory_busy)); }
READING(v_account_memory) { (void)value; return WRITE("%llu", mebibytes(of->account->memory_max)); }
READING(v_account_time)
{
    (void)value;
    return WRITE("%llu", of->account->running ? 0ull : (unsigned long long)account_ms(of->account));
}

/* A process, a clock or a cause. */

READING(v_pid) { (void)value; return of->process ? WRITE("%d", of->process->pid) : UNAVAILABLE; }
READING(v_process_name) { (void)value; return of->process ? WRITE("%s", of->process->name) : UNAVAILABLE; }
READING(v_process_memory) { (void)value; return of->process ? WRITE("%llu", process_mebibytes(of->process)) : UNAVAILABLE; }
READING(v_memory_clock) { (void)value; return WRITE("%u", of->memory_clock); }
READING(v_clock) { (void)value; return WRITE("%u", of->clock); }
READING(v_cause) { (void)value; return WRITE("%s", of->cause); }
