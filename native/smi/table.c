/* The table that the tool prints when it is asked for nothing else. */
#include <stdio.h>
#include <string.h>
#include "smi.h"

static const char WIDE[] = "+-----------------------------------------------------------------------------------------+";
static const char THREE[] = "+-----------------------------------------+------------------------+----------------------+";
static const char FOUR[] = "+------------------+----------------------------------+-----------+-----------------------+";
static const char WITHIN[] = "+------------------+                                  +-----------+-----------------------+";

static void print_head(const struct page *page)
{
    char now[CELL], cuda[32];
    clock_text(now);
    snprintf(cuda, sizeof cuda, "%u.%u", page->cuda / 1000, page->cuda % 1000 / 10);
    printf("%s       \n%s\n", now, WIDE);
    printf("| NVIDIA-SMI %-22s Driver Version: %-14s CUDA Version: %-9s|\n%s\n", page->driver, page->driver, cuda, THREE);
    puts("| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |\n"
         "| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |\n"
         "|                                         |                        |               MIG M. |\n"
         "|=========================================+========================+======================|");
}

/* A name that is too long loses its end. */
static void shorten_end(char *into, const char *name, size_t most)
{
    size_t length = strlen(name);
    if (length <= most) memcpy(into, name, length + 1);
    else {
        memcpy(into, name, most - 3);
        memcpy(into + most - 3, "...", 4);
    }
}

/* A path that is too long loses its beginning. */
static void shorten_start(char *into, const char *name, size_t most)
{
    size_t length = strlen(name);
    if (length <= most) memcpy(into, name, length + 1);
    else {
        memcpy(into, "...", 3);
        memcpy(into + 3, name + length - (most - 3), most - 2);
    }
}

static void errors_cell(const struct page *page, char *into)
{
    if (page->mig_mode) strcpy(into, "On");
    else if (!counts_errors(page)) strcpy(into, has_ecc(page) ? "Off" : "N/A");
    else snprintf(into, 32, "%llu", (unsigned long long)page->ecc_uncorrected);
}

static const char *mode_cell(unsigned mode)
{
    static const char *const NAMES[] = {"Default", "E. Thread", "Prohibited", "E. Process"};
    return NAMES[mode < 4 ? mode : 0];
}

static void print_gpu(const struct gpu *gpu)
{
    const struct page *page = &gpu->page;
    char name[32], bus[CELL], fan[16], errors[32], heat[16], power[16], limit[16], used[32], total[32], usage[16];
    shorten_end(name, page->product, 27);
    bus_id(page, bus);
    errors_cell(page, errors);
    if (page->fans) snprintf(fan, sizeof fan, "%u%%", page->fan_speed);
    else strcpy(fan, "N/A");
    snprintf(heat, sizeof heat, "%dC", page->temperature);
    snprintf(power, sizeof power, "%uW", page->power_mw / 1000);
    snprintf(limit, sizeof limit, "%uW", page->power_limit_mw / 1000);
    snprintf(used, sizeof used, "%lluMiB", mebibytes(page->memory_used));
    snprintf(total, sizeof total, "%lluMiB", mebibytes(page->memory_total));
    snprintf(usage, sizeof usage, "%u%%", page->usage);
    printf("|%4u  %-27s    %-3s |   %s Off |%21s |\n", gpu->index, name, page->persistence ? "On" : "Off", bus, errors);
    printf("|%4s %5s    P%-2u%15s / %5s |%11s / %9s |%8s %12s |\n", fan, heat, page->pstate, power, limit, used, total,
           page->mig_mode ? "N/A" : usage, mode_cell(page->compute_mode));
    printf("|                                         |                        |%21s |\n%s\n",
           !page->mig_capable ? "N/A" : page->mig_mode ? "Enabled" : "Disabled", THREE);
}

/* Compute instances of one GPU instance share its memory, which stands beside the first. */
static void print_memory_of(unsigned long long used, unsigned long long total)
{
    char cells[3][32];
    snprintf(cells[0], sizeof cells[0], "%lluMiB", used);
    snprintf(cells[1], sizeof cells[1], "%lluMiB", total);
    snprintf(cells[2], sizeof cells[2], "%8s", cells[1]);
    printf("%19s / %-12s", cells[0], cells[2]);
}

static void print_instance(const struct gpu *gpu, unsigned device)
{
    const struct instance *instance = &gpu->page.instances[device];
    const struct profile *profile = instance_profile(&gpu->page, instance);
    int first = is_gpu_instance(&gpu->page, instance), last = device + 1 == gpu->page.instance_count || is_gpu_instance(&gpu->page, instance + 1);
    printf("|%3u  %3u %3u %3u  |", gpu->index, instance->gpu_instance, instance->compute_instance, device);
    if (first) print_memory_of(mebibytes(instance->memory_used), mebibytes(instance->memory_total));
    else printf("%34s", "");
    printf("|%3u      0 |%3u   0%5u%5u%5u |\n|                  |", compute_of(&gpu->page, instance).sm, profile->copy_engines,
           profile->decoders, profile->ofas, profile->jpegs);
    if (first) print_memory_of(instance_window_used(&gpu->page, instance), instance->bar1_kib >> 10);
    else printf("%34s", "");
    printf("|           |                       |\n%s\n", last ? FOUR : WITHIN);
}

static void print_instances(const struct machine *machine)
{
    unsigned shown = 0;
    if (!machine_any(machine, is_cut)) return;
    printf("\n%s\n"
           "| MIG devices:                                                                            |\n%s\n"
           "| GPU  GI  CI  MIG |              Shared Memory-Usage |        Vol|        Shared         |\n"
           "|      ID  ID  Dev |                Shared BAR1-Usage | SM     Unc| CE ENC  DEC  OFA  JPG |\n"
           "|                  |                                  |        ECC|                       |\n"
           "|==================+==================================+===========+=======================|\n", WIDE, FOUR);
    for (unsigned i = 0; i < machine->count; i++)
        for (unsigned j = 0; j < machine->gpu[i].page.instance_count; j++, shown++) print_instance(&machine->gpu[i], j);
    if (!shown) printf("|  No MIG devices found                                                                   |\n%s\n", WIDE);
}

static void number_cell(int number, char *into)
{
    if (number < 0) strcpy(into, "N/A");
    else snprintf(into, 16, "%d ", number);
}

static unsigned print_processes_of(const struct gpu *gpu)
{
    const struct process *processes = 0;
    unsigned many = gpu_processes(gpu, &processes);
    for (unsigned i = 0; i < many; i++) {
        char instance[16], compute[16], name[64], memory[32];
        number_cell(processes[i].gpu_instance, instance);
        number_cell(processes[i].compute_instance, compute);
        shorten_start(name, processes[i].name, 32);
        snprintf(memory, sizeof memory, "%lluMiB", process_mebibytes(&processes[i]));
        printf("|%5u%6s%5s%16d      C   %-32s%14s |\n", gpu->index, instance, compute, processes[i].pid, name, memory);
    }
    return many;
}

void print_table(struct machine *machine)
{
    print_head(&machine->gpu[0].page);
    for (unsigned i = 0; i < machine->count; i++) print_gpu(&machine->gpu[i]);
    print_instances(machine);
    printf("\n%s\n"
           "| Processes:                                                                              |\n"
           "|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |\n"
           "|        ID   ID                                                               Usage      |\n"
           "|=========================================================================================|\n", WIDE);
    unsigned shown = 0;
    for (unsigned i = 0; i < machine->count; i++) shown += print_processes_of(&machine->gpu[i]);
    if (!shown) puts("|  No running processes found                                                             |");
    puts(WIDE);
}
