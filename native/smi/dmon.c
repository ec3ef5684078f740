/* dmon: a line of figures for each card, again and again. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "monitor.h"

/* What a cell is made of: the card now, and as it was a row before (itself in the first row). */
struct look { const struct page *now, *before; int first; };
static const int64_t NOT_THERE = -1;
struct column { char group; const char *name, *unit; int64_t (*read)(const struct look *look); unsigned metric; };

#define CELL_OF(name, value) static int64_t name(const struct look *look) { const struct page *page = look->now; (void)page; return value; }
CELL_OF(power, page->power_mw / 1000)
CELL_OF(heat, page->temperature)
CELL_OF(memory_heat, page->temperature_memory_max ? page->temperature_memory : NOT_THERE)
CELL_OF(usage, page->mig_mode ? NOT_THERE : page->usage)
CELL_OF(memory_usage, page->mig_mode ? NOT_THERE : page->memory_usage)
CELL_OF(engine_usage, page->mig_mode ? NOT_THERE : 0)
CELL_OF(memory_clock, page->memory_clock)
CELL_OF(sm_clock, page->sm_clock)
CELL_OF(memory, (int64_t)mebibytes(page->memory_used))
CELL_OF(window, (int64_t)(page->bar1_used >> 20))
CELL_OF(corrected, counts_errors(page) ? (int64_t)page->ecc_corrected : NOT_THERE)
CELL_OF(uncorrected, counts_errors(page) ? (int64_t)page->ecc_uncorrected : NOT_THERE)
CELL_OF(none, 0)
CELL_OF(received, page->pcie_rx_kbps / 1000)
CELL_OF(sent, page->pcie_tx_kbps / 1000)
CELL_OF(graphics_activity, look->first ? NOT_THERE : page->busy_ppm / 10000)
CELL_OF(sm_activity, look->first ? NOT_THERE : page->sm_ppm / 10000)
CELL_OF(tensor_activity, look->first ? NOT_THERE : page->tensor_ppm / 10000)
CELL_OF(unknown, NOT_THERE)
CELL_OF(bus_sent, look->first ? NOT_THERE : page->pcie_tx_kbps / 1024)
CELL_OF(bus_received, look->first ? NOT_THERE : page->pcie_rx_kbps / 1024)
CELL_OF(memory_activity, look->first ? NOT_THERE : page->dram_ppm / 10000)

static uint64_t thermal(const struct page *page) { return page->throttle_thermal_ns + page->throttle_hardware_ns; }
CELL_OF(held_by_heat, thermal(look->now) > thermal(look->before))

/* Percent of the time since the row before that the power limit held clocks down. */
static int64_t held_by_power(const struct look *look)
{
    uint64_t passed = look->now->written_ns - look->before->written_ns;
    uint64_t held = look->now->throttle_power_ns - look->before->throttle_power_ns;
    return passed && held <= passed ? (int64_t)(held * 100 / passed) : held && passed ? 100 : 0;
}

static const struct column COLUMNS[] = {
    {'p', "pwr", "W", power, 0}, {'p', "gtemp", "C", heat, 0}, {'p', "mtemp", "C", memory_heat, 0},
    {'u', "sm", "%", usage, 0}, {'u', "mem", "%", memory_usage, 0}, {'u', "enc", "%", engine_usage, 0},
    {'u', "dec", "%", engine_usage, 0}, {'u', "jpg", "%", engine_usage, 0}, {'u', "ofa", "%", engine_usage, 0},
    {'c', "mclk", "MHz", memory_clock, 0}, {'c', "pclk", "MHz", sm_clock, 0},
    {'v', "pviol", "%", held_by_power, 0}, {'v', "tviol", "bool", held_by_heat, 0},
    {'m', "fb", "MB", memory, 0}, {'m', "bar1", "MB", window, 0}, {'m', "ccpm", "MB", none, 0},
    {'e', "sbecc", "errs", corrected, 0}, {'e', "dbecc", "errs", uncorrected, 0}, {'e', "pci", "errs", none, 0},
    {'t', "rxpci", "MB/s", received, 0}, {'t', "txpci", "MB/s", sent, 0},
    {0, "gract", "GPM:%", graphics_activity, 1}, {0, "smutil", "GPM:%", sm_activity, 2},
    {0, "smocc", "GPM:%", unknown, 3}, {0, "intutil", "GPM:%", unknown, 4}, {0, "mmaact", "GPM:%", tensor_activity, 5},
    {0, "dfmat", "GPM:%", unknown, 6}, {0, "hmmat", "GPM:%", unknown, 7}, {0, "immat", "GPM:%", unknown, 9},
    {0, "dram", "GPM:%", memory_activity, 10}, {0, "fp64", "GPM:%", unknown, 11}, {0, "fp32", "GPM:%", unknown, 12},
    {0, "fp16", "GPM:%", unknown, 13}, {0, "pcitx", "GPM:MiB/s", bus_sent, 20}, {0, "pcirx", "GPM:MiB/s", bus_received, 21},
    {0, "nvlrx", "GPM:MiB/s", unknown, 60}, {0, "nvltx", "GPM:MiB/s", unknown, 61},
};
enum { COLUMN_COUNT = sizeof COLUMNS / sizeof *COLUMNS };

static struct { const struct column *column[COLUMN_COUNT]; unsigned count; } chosen;

enum { HIGHEST_METRIC = 209 };

static int choose_metrics(const char *names)
{
    char copy[CELL], *rest = copy, *name;
    snprintf(copy, sizeof copy, "%s", names);
    while ((name = strsep(&rest, ","))) {
        const struct column *found = 0;
        for (unsigned i = 0; i < COLUMN_COUNT; i++)
            if (COLUMNS[i].metric && COLUMNS[i].metric == strtoul(name, 0, 10)) found = &COLUMNS[i];
        if (!found || chosen.count == COLUMN_COUNT) {
            if (strtoul(name, 0, 10) > HIGHEST_METRIC) printf("Metric value too high: %s\n", name);
            puts("Could not parse GPM metrics\nFailed to process command line \n");
            return EXIT_BAD_OPTION;
        }
        chosen.column[chosen.count++] = found;
    }
    return EXIT_GOOD;
}

/* Groups come in the order of the table, whatever order they are named in. */
static int choose(const struct monitor *monitor)
{
    const char *groups = monitor->values[M_SELECT] ? monitor->values[M_SELECT] : "puc";
    chosen.count = 0;
    for (unsigned i = 0; i < COLUMN_COUNT; i++)
        if (COLUMNS[i].group && strchr(groups, COLUMNS[i].group)) chosen.column[chosen.count++] = &COLUMNS[i];
    if (!chosen.count) {
        puts("Failed to find any metric to display\nFailed to process command line \n");
        return EXIT_BAD_OPTION;
    }
    return monitor->values[M_METRICS] ? choose_metrics(monitor->values[M_METRICS]) : EXIT_GOOD;
}

static void print_cell(const struct monitor *monitor, const struct column *column, const char *text)
{
    if (monitor->csv) printf(", %s", text);
    else printf(" %*s", column->metric ? 10 : 6, text);
}

static void print_headings(const struct monitor *monitor, enum heading heading)
{
    monitor_heading(monitor, heading);
    for (unsigned i = 0; i < chosen.count; i++)
        print_cell(monitor, chosen.column[i], heading == NAMES ? chosen.column[i]->name : chosen.column[i]->unit);
    puts(monitor->csv ? "" : " ");
}

static void print_card(struct monitor *monitor, const struct gpu *gpu, const struct look *look)
{
    char text[32];
    monitor_card(monitor, gpu);
    for (unsigned i = 0; i < chosen.count; i++) {
        int64_t value = chosen.column[i]->read(look);
        if (value == NOT_THERE) strcpy(text, "-");
        else snprintf(text, sizeof text, "%lld", (long long)value);
        print_cell(monitor, chosen.column[i], text);
    }
    puts(monitor->csv ? "" : " ");
}

static void print_round(struct monitor *monitor, int first)
{
    static struct page before[MAX_CARDS];
    int heads = monitor_heads(monitor);
    if (heads && !monitor->no_header) print_headings(monitor, NAMES);
    if (heads && !monitor->no_units) print_headings(monitor, UNITS);
    for (unsigned i = 0; i < monitor->machine.count; i++) {
        const struct gpu *gpu = &monitor->machine.gpu[i];
        struct look look = {&gpu->page, first ? &gpu->page : &before[gpu->index], first};
        print_card(monitor, gpu, &look);
        before[gpu->index] = gpu->page;
    }
}

static const struct monitoring AS = {"dmon", 600, M_MANY};

int run_devices(int count, char **words)
{
    static struct monitor monitor;
    int code = monitor_open(&monitor, &AS, count, words);
    if (code < 0) code = choose(&monitor);
    else return code;
    return code ? code : monitor_run(&monitor, print_round);
}
