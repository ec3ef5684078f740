/* The cards that this program shows: reading them, choosing among them, and values that are derived from a page. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "smi.h"

/* Pages come from outside: text is ended, and counts are kept within their arrays, before anything looks at them. */
static const struct { size_t at, size; } TEXTS[] = {
#define TEXT(name) {offsetof(struct page, name), sizeof ((struct page *)0)->name}
    TEXT(uuid), TEXT(serial), TEXT(product), TEXT(architecture), TEXT(driver), TEXT(part_number), TEXT(gpu_part_number),
    TEXT(vbios), TEXT(inforom_image), TEXT(inforom_oem), TEXT(inforom_ecc), TEXT(addressing), TEXT(c2c), TEXT(control),
#undef TEXT
};

static void tame(struct page *page)
{
    for (size_t i = 0; i < sizeof TEXTS / sizeof *TEXTS; i++) ((char *)page)[TEXTS[i].at + TEXTS[i].size - 1] = 0;
    for (unsigned i = 0; i < PAGE_PROFILES; i++) page->profiles[i].name[sizeof page->profiles[i].name - 1] = 0;
    for (unsigned i = 0; i < PAGE_INSTANCES; i++) page->instances[i].uuid[sizeof page->instances[i].uuid - 1] = 0;
    if (page->instance_count > PAGE_INSTANCES) page->instance_count = PAGE_INSTANCES;
    if (!page->mig_mode) page->instance_count = page->bare_count = 0;
    if (page->links > MAX_LINKS) page->links = MAX_LINKS;
}

void bus_id(const struct page *page, char *into)
{
    snprintf(into, CELL, "%08X:%02X:%02X.0", page->pci_domain, page->pci_bus, page->pci_device);
}

/* An identifier is an index, a UUID, or a bus id with a domain of any length, or none. */
static int is_called(const struct gpu *gpu, const char *name)
{
    char *end;
    unsigned long index = strtoul(name, &end, 10);
    if (end != name && !*end) return index == gpu->index;
    if (!strcmp(name, gpu->page.uuid)) return 1;
    unsigned domain = 0, number, slot, function;
    int used = 0;
    if (sscanf(name, "%8x:%2x:%2x.%1x%n", &domain, &number, &slot, &function, &used) != 4) {
        domain = 0;
        if (sscanf(name, "%2x:%2x.%1x%n", &number, &slot, &function, &used) != 3) return 0;
    }
    return !name[used] && domain == gpu->page.pci_domain && number == gpu->page.pci_bus && slot == gpu->page.pci_device && !function;
}

static int is_chosen(const struct gpu *gpu, const char *ids)
{
    if (!ids) return 1;
    char copy[4096], *rest = copy, *name;
    snprintf(copy, sizeof copy, "%s", ids);
    while ((name = strsep(&rest, ",")))
        if (*name && is_called(gpu, name)) return 1;
    return 0;
}

static void say_lost(const struct gpu *gpu)
{
    printf("Unable to determine the device handle for GPU%u: %04X:%02X:%02X.0: GPU is lost.  Reboot the system to recover this GPU\n",
           gpu->index, gpu->page.pci_domain, gpu->page.pci_bus, gpu->page.pci_device);
}

/* Looking for processes takes longer than all else, and where they are all in /proc, every card has the same. */
static struct { struct process all[MAX_PROCESSES], list[MAX_PROCESSES]; unsigned count, known; } processes;

unsigned gpu_processes(const struct gpu *gpu, const struct process **found)
{
    const struct page *page = &gpu->page;
    if (!page->open || page->processes == PAGE_NO_PROCESSES) return 0;
    *found = processes.list;
    if (lists_processes(page)) {
        processes.known = 0;
        return card_processes(page, processes.list, MAX_PROCESSES);
    }
    if (!processes.known) processes.count = process_list(page, processes.all, MAX_PROCESSES);
    processes.known = 1;
    return process_shares(page, processes.all, processes.count, processes.list, MAX_PROCESSES);
}

int machine_read(struct machine *machine, const char *ids)
{
    machine->count = 0;
    machine->attached = machine->cards.count;
    machine->lost = 0;
    processes.known = 0;
    for (unsigned i = 0; i < machine->cards.count; i++) {
        struct gpu *gpu = &machine->gpu[machine->count];
        gpu->index = i;
        int result = card_read(&machine->cards.card[i], &gpu->page);
        tame(&gpu->page);
        if (result == READ_OTHER_VERSION) return result;
        if (!is_chosen(gpu, ids)) continue;
        if (result == READ_OK) machine->count++;
        else {
            say_lost(gpu);
            machine->lost = 1;
        }
    }
    if (!machine->count && !machine->lost) {
        puts("No devices were found");
        return EXIT_NO_DEVICES;
    }
    return machine->count ? EXIT_GOOD : READ_LOST;
}

int gpu_refresh(const struct machine *machine, struct gpu *gpu)
{
    int code = card_read(&machine->cards.card[gpu->index], &gpu->page);
    tame(&gpu->page);
    return code;
}

static int say_unreadable(int code)
{
    if (code == READ_OTHER_VERSION) puts("Failed to initialize NVML: Driver/library version mismatch");
    else if (code == READ_NO_PERMISSION) puts("Failed to initialize NVML: Insufficient Permissions");
    else puts("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
              "Make sure that the latest NVIDIA driver is installed and running.\n");
    return code;
}

int machine_open(struct machine *machine, const char *ids)
{
    int code = cards_open(&machine->cards);
    if (code == READ_OK) code = machine_read(machine, ids);
    else return say_unreadable(code);
    return code == READ_OTHER_VERSION ? say_unreadable(code) : code;
}

/* An instance that is the whole card has the card's window; all others have one of their own, which is empty. */
unsigned long long instance_window_used(const struct page *page, const struct instance *instance)
{
    return (page->bar1_total >> 10) == instance->bar1_kib ? page->bar1_used >> 20 : 0;
}

int is_cut(const struct page *page) { return page->mig_mode != 0; }

int machine_any(const struct machine *machine, int (*has)(const struct page *page))
{
    for (unsigned i = 0; i < machine->count; i++)
        if (has(&machine->gpu[i].page)) return 1;
    return 0;
}

void compute_name(const struct profile *within, const struct compute *kind, char *into)
{
    char part[16] = "";
    if (kind->slices < within->slices) snprintf(part, sizeof part, "%uc.", kind->slices);
    snprintf(into, CELL, "%s%.*s", part, size_of_name(within->name), within->name);
}

unsigned supported_clocks(const struct page *page, unsigned *into)
{
    unsigned many = 0;
    uint64_t step = page->sm_clock_step_khz ? page->sm_clock_step_khz : 1000000;
    for (uint64_t clock = page->sm_clock_max * 1000ull; many < MAX_CLOCKS && clock >= page->sm_clock_min * 1000ull; clock -= step) {
        into[many++] = (unsigned)(clock / 1000);
        if (clock < step) break;
    }
    return many;
}

unsigned long long mebibytes(uint64_t bytes)
{
    return bytes / 1048576 + (bytes % 1048576 != 0);
}

unsigned long long process_mebibytes(const struct process *process) { return process->memory / 1048576; }

const char *compute_mode_name(unsigned mode)
{
    static const char *const NAMES[] = {"Default", "Exclusive_Thread", "Prohibited", "Exclusive_Process"};
    return NAMES[mode < 4 ? mode : 0];
}

int print_list(const struct machine *machine)
{
    for (unsigned i = 0; i < machine->count; i++) {
        const struct gpu *gpu = &machine->gpu[i];
        printf("GPU %u: %s (UUID: %s)\n", gpu->index, gpu->page.product, gpu->page.uuid);
        for (unsigned j = 0; j < gpu->page.instance_count; j++) {
            const struct instance *instance = &gpu->page.instances[j];
            struct compute kind = compute_of(&gpu->page, instance);
            char name[CELL];
            compute_name(instance_profile(&gpu->page, instance), &kind, name);
            printf("  MIG %-11s Device %2u: (UUID: %s)\n", name, j, instance->uuid);
        }
    }
    return EXIT_GOOD;
}

int print_version(const struct machine *machine)
{
    const struct page *page = &machine->gpu[0].page;
    char library[sizeof page->driver];
    memcpy(library, page->driver, sizeof library);
    char *last = strrchr(library, '.');
    if (last && last != strchr(library, '.')) *last = 0; /* the library leaves out the third part */
    printf("NVIDIA-SMI version  : %s\nNVML version        : %s\nDRIVER version      : %s\nCUDA Version        : %u.%u\n",
           page->driver, library, page->driver, page->cuda / 1000, page->cuda % 1000 / 10);
    return EXIT_GOOD;
}
