/* The parts of -q with as many lines as a card has instances, clocks, processes or samples. */
#include <string.h>
#include "rows.h"

/* MIG devices. */

static void write_shared(struct writer *to, const struct profile *profile, unsigned multiprocessors)
{
    write_group(to, "Device Attributes", "device_attributes");
    write_group(to, "Shared", "shared");
    write_number(to, "Multiprocessor count", "multiprocessor_count", multiprocessors, "");
    write_number(to, "Copy Engine count", "copy_engine_count", profile->copy_engines, "");
    write_number(to, "Encoder count", "encoder_count", 0, "");
    write_number(to, "Decoder count", "decoder_count", profile->decoders, "");
    write_number(to, "OFA count", "ofa_count", profile->ofas, "");
    write_number(to, "JPG count", "jpg_count", profile->jpegs, "");
    write_end(to, "shared");
    write_end(to, "device_attributes");
}

static void write_instance(struct writer *to, const struct page *page, unsigned device)
{
    const struct instance *instance = &page->instances[device];
    const struct profile *profile = instance_profile(page, instance);
    uint64_t total = instance->memory_total, used = instance->memory_used;
    unsigned long long window = instance->bar1_kib >> 10, mapped = instance_window_used(page, instance);
    write_group(to, "MIG Device", "mig_device");
    write_number(to, "Index", "index", device, "");
    write_number(to, "GPU Instance ID", "gpu_instance_id", instance->gpu_instance, "");
    write_number(to, "Compute Instance ID", "compute_instance_id", instance->compute_instance, "");
    write_shared(to, profile, compute_of(page, instance).sm);
    write_group(to, "ECC Errors", "ecc_error_count");
    write_group(to, "Volatile", "volatile_count");
    write_number(to, "SRAM Uncorrectable", "sram_uncorrectable", 0, "");
    write_end(to, "volatile_count");
    write_end(to, "ecc_error_count");
    write_group(to, "FB Memory Usage", "fb_memory_usage");
    write_number(to, "Total", "total", mebibytes(total), " MiB");
    write_number(to, "Reserved", "reserved", 0, " MiB");
    write_number(to, "Used", "used", mebibytes(used), " MiB");
    write_number(to, "Free", "free", total > used ? mebibytes(total - used) : 0, " MiB");
    write_end(to, "fb_memory_usage");
    write_group(to, "BAR1 Memory", "bar1_memory_usage");
    write_number(to, "Total", "total", window, " MiB");
    write_number(to, "Used", "used", mapped, " MiB");
    write_number(to, "Free", "free", window > mapped ? window - mapped : 0, " MiB");
    write_end(to, "bar1_memory_usage");
    write_end(to, "mig_device");
}

/* In the XML, devices stand no deeper than their list. */
void list_instances(struct writer *to, const struct subject *of)
{
    const struct page *page = &of->gpu->page;
    if (to->xml) fputs("\t\t<mig_devices>\n", stdout);
    if (to->xml && !page->instance_count) puts("\t\t\tNone");
    for (unsigned i = 0; i < page->instance_count; i++) write_instance(to, page, i);
    if (to->xml) puts("\t\t</mig_devices>");
}

/* Clocks. */

void list_clocks(struct writer *to, const struct subject *of)
{
    unsigned clocks[MAX_CLOCKS], many = supported_clocks(&of->gpu->page, clocks);
    write_group(to, "Supported Clocks", "supported_clocks");
    for (unsigned i = 0; memory_clock_at(&of->gpu->page, i); i++) {
        if (to->xml) write_group(to, 0, "supported_mem_clock");
        write_number(to, "Memory", "value", memory_clock_at(&of->gpu->page, i), " MHz");
        if (!to->xml) to->depth++;
        for (unsigned j = 0; j < many; j++) write_number(to, "Graphics", "supported_graphics_clock", clocks[j], " MHz");
        write_end(to, "supported_mem_clock");
    }
    write_end(to, "supported_clocks");
}

/* Processes. */

static void write_process_xml(struct writer *to, const struct process *process, const char *instance, const char *compute)
{
    write_group(to, 0, "process_info");
    write_line(to, 0, "gpu_instance_id", instance);
    write_line(to, 0, "compute_instance_id", compute);
    write_number(to, 0, "pid", (unsigned long long)process->pid, "");
    write_line(to, 0, "type", "C");
    write_line(to, 0, "process_name", process->name);
    write_number(to, 0, "used_memory", process_mebibytes(process), " MiB");
    write_end(to, "process_info");
}

/* The text has a narrower column here than anywhere else. */
static void write_process_text(const struct process *process, const char *instance, const char *compute)
{
    printf("        GPU instance ID                   : %s\n", instance);
    printf("        Compute instance ID               : %s\n", compute);
    printf("        Process ID                        : %d\n", process->pid);
    printf("            Type                          : C\n");
    printf("            Name                          : %s\n", process->name);
    printf("            Used GPU Memory               : %llu MiB\n", process_mebibytes(process));
}

static void number_or_none(int number, char *into)
{
    if (number < 0) strcpy(into, "N/A");
    else snprintf(into, 16, "%d", number);
}

void list_processes(struct writer *to, const struct subject *of)
{
    const struct process *processes = 0;
    unsigned many = gpu_processes(of->gpu, &processes);
    if (!to->xml && !many) {
        write_line(to, "Processes", 0, "None");
        return;
    }
    write_group(to, "Processes", "processes");
    for (unsigned i = 0; i < many; i++) {
        char instance[16], compute[16];
        number_or_none(processes[i].gpu_instance, instance);
        number_or_none(processes[i].compute_instance, compute);
        if (to->xml) write_process_xml(to, &processes[i], instance, compute);
        else write_process_text(&processes[i], instance, compute);
    }
    write_end(to, "processes");
}

static void write_account_xml(struct writer *to, const struct account *account)
{
    write_group(to, 0, "accounted_process_info");
    write_number(to, 0, "pid", (unsigned long long)account->pid, "");
    write_number(to, 0, "gpu_util", account_usage(account, account->busy), " %");
    write_number(to, 0, "memory_util", account_usage(account, account->memory_busy), " %");
    write_number(to, 0, "max_memory_usage", mebibytes(account->memory_max), " MiB");
    write_number(to, 0, "time", account->running ? 0 : account_ms(account), " ms");
    write_number(to, 0, "is_running", account->running != 0, "");
    write_end(to, "accounted_process_info");
}

static void write_account_text(const struct account *account)
{
    printf("        %-47s: %d\n", "Process ID", account->pid);
    printf("            %-43s: %u %%\n", "GPU Utilization", account_usage(account, account->busy));
    printf("            %-43s: %u %%\n", "Memory Utilization", account_usage(account, account->memory_busy));
    printf("            %-43s: %llu MiB\n", "Max memory usage", mebibytes(account->memory_max));
    printf("            %-43s: %llu ms\n", "Time", account->running ? 0ull : (unsigned long long)account_ms(account));
    printf("            %-43s: %u\n", "Is Running", account->running != 0);
}

void list_accounted(struct writer *to, const struct subject *of)
{
    const struct page *page = &of->gpu->page;
    unsigned many = account_count(page);
    if (!to->xml && !many) {
        write_line(to, "Accounted Processes", 0, "None");
        return;
    }
    write_group(to, "Accounted Processes", "accounted_processes");
    for (unsigned i = 0; i < many; i++) {
        if (to->xml) write_account_xml(to, &page->accounts[i]);
        else write_account_text(&page->accounts[i]);
    }
    write_end(to, "accounted_processes");
}

/* Samples. */

struct summary { unsigned count; double seconds; uint32_t highest, lowest; double mean; };

static struct summary summarise(const struct page *page, size_t field)
{
    struct summary found = {.lowest = UINT32_MAX};
    uint64_t first = 0, last = 0, sum = 0;
    unsigned many = page->sample_count < PAGE_SAMPLES ? (unsigned)page->sample_count : PAGE_SAMPLES;
    for (unsigned i = 0; i < many; i++) {
        const struct sample *sample = &page->samples[(page->sample_count - many + i) % PAGE_SAMPLES];
        uint32_t value = *(const uint32_t *)((const char *)sample + field);
        if (!i) first = sample->time_us;
        last = sample->time_us;
        sum += value;
        if (value > found.highest) found.highest = value;
        if (value < found.lowest) found.lowest = value;
    }
    found.count = many;
    found.seconds = last > first ? (double)(last - first) / 1e6 : 0;
    found.mean = many ? (double)sum / many : 0;
    return found;
}

static void write_samples(struct writer *to, const char *label, struct summary found, double scale, int decimals, const char *unit)
{
    char text[64];
    const char *names[] = {"Max", "Min", "Avg"};
    double values[] = {found.highest, found.lowest, found.mean};
    write_group(to, label, 0);
    snprintf(text, sizeof text, "%.2f sec", found.seconds);
    write_line(to, "Duration", 0, found.count ? text : "Not Found");
    if (found.count) write_number(to, "Number of Samples", 0, found.count, "");
    else write_line(to, "Number of Samples", 0, "Not Found");
    for (unsigned i = 0; i < 3; i++) {
        snprintf(text, sizeof text, "%.*f %s", decimals, values[i] * scale, unit);
        write_line(to, names[i], 0, found.count ? text : "Not Found");
    }
    write_end(to, 0);
}

void list_power_samples(struct writer *to, const struct subject *of)
{
    write_samples(to, "Power Samples", summarise(&of->gpu->page, offsetof(struct sample, power_mw)), 1e-3, 2, "W");
}

void list_usage_samples(struct writer *to, const struct subject *of)
{
    static const char *const ENGINES[] = {"ENC", "DEC", "JPG", "OFA"};
    struct summary usage = summarise(&of->gpu->page, offsetof(struct sample, usage)), quiet = usage;
    char label[64];
    write_samples(to, "GPU Utilization Samples", usage, 1, 0, "%");
    write_samples(to, "Memory Utilization Samples", summarise(&of->gpu->page, offsetof(struct sample, memory_usage)), 1, 0, "%");
    quiet.highest = quiet.lowest = 0;
    quiet.mean = 0;
    for (unsigned i = 0; i < 4; i++) {
        snprintf(label, sizeof label, "%s Utilization Samples", ENGINES[i]);
        write_samples(to, label, quiet, 1, 0, "%");
    }
}
