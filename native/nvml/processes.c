/* The processes that use a card. Lists are long, and threads' stacks may be small: one list for all, with a lock. */
#include "library.h"

#define NO_PROCESS 0xffffffffu

enum { MODE_COMPUTE, MODE_GRAPHICS, MODE_MPS, MODE_ALL, MODES };

static struct process found[MAX_PROCESSES];
static struct lock lock;

/* Those of a card, or of one of its instances. The lock is held afterwards. */
static unsigned take_processes(const struct device *d)
{
    lock_take(&lock);
    unsigned count = card_processes(&d->page, found, MAX_PROCESSES), kept = 0;
    for (unsigned i = 0; i < count; i++)
        if (!d->instance || (found[i].gpu_instance == (int)d->instance->gpu_instance
                             && found[i].compute_instance == (int)d->instance->compute_instance)) found[kept++] = found[i];
    return kept;
}

static struct process_v2 as_v2(const struct process *process)
{
    return (struct process_v2){(uint32_t)process->pid, process->memory, (uint32_t)process->gpu_instance,
                               (uint32_t)process->compute_instance};
}

static int compute_processes(handle device, unsigned *count, void *into, int version)
{
    struct device d;
    int code = any_open(device, count, &d);
    if (code != OK) return code;
    unsigned there = take_processes(&d);
    code = answer_count(count, into, there);
    for (unsigned i = 0; code == OK && i < there; i++) {
        if (version == 1) ((struct process_v1 *)into)[i] = (struct process_v1){(uint32_t)found[i].pid, found[i].memory};
        else ((struct process_v2 *)into)[i] = as_v2(&found[i]);
    }
    lock_give(&lock);
    return code;
}

#define LIST(function, version) \
    API function(handle device, unsigned *count, void *into) { return compute_processes(device, count, into, version); }

LIST(nvmlDeviceGetComputeRunningProcesses, 1)
LIST(nvmlDeviceGetComputeRunningProcesses_v2, 2)
LIST(nvmlDeviceGetComputeRunningProcesses_v3, 3)

int compute_processes_named(handle device, unsigned *count, struct process_named *into)
{
    struct device d;
    int code = any_open(device, count, &d);
    if (code != OK) return code;
    unsigned there = take_processes(&d);
    code = answer_count(count, into, there);
    for (unsigned i = 0; code == OK && i < there; i++) {
        into[i].process = as_v2(&found[i]);
        into[i].protected_memory = 0;
        text_copy(into[i].name, found[i].name, sizeof into[i].name);
    }
    lock_give(&lock);
    return code;
}

/* Nothing draws, and nothing shares a card through a server. */
static int no_processes(handle device, unsigned *count)
{
    struct device d;
    int code = any_open(device, count, &d);
    if (code == OK) *count = 0;
    return code;
}

#define EMPTY(function) \
    API function(handle device, unsigned *count) { return no_processes(device, count); }

EMPTY(nvmlDeviceGetGraphicsRunningProcesses)
EMPTY(nvmlDeviceGetGraphicsRunningProcesses_v2)
EMPTY(nvmlDeviceGetGraphicsRunningProcesses_v3)
EMPTY(nvmlDeviceGetMPSComputeRunningProcesses)
EMPTY(nvmlDeviceGetMPSComputeRunningProcesses_v2)
EMPTY(nvmlDeviceGetMPSComputeRunningProcesses_v3)

int graphics_processes_named(handle device, unsigned *count) { return no_processes(device, count); }
int mps_processes_named(handle device, unsigned *count) { return no_processes(device, count); }

API nvmlDeviceGetRunningProcessDetailList(handle device, struct process_details *into)
{
    struct device d;
    int code = any_open(device, into, &d);
    if (code != OK) return code;
    if (into->version != VERSION(*into, 1)) return VERSION_MISMATCH;
    if (into->mode >= MODES) return INVALID_ARGUMENT;
    unsigned there = take_processes(&d);
    if (into->mode == MODE_GRAPHICS || into->mode == MODE_MPS) there = 0;
    code = answer_count(&into->count, into->processes, there);
    for (unsigned i = 0; code == OK && i < there; i++) into->processes[i] = (struct process_detail){as_v2(&found[i]), 0};
    lock_give(&lock);
    return code;
}

/* When the last sample was taken, which is what the percentages below are of. */
static uint64_t sampled_at(const struct page *page)
{
    return page->sample_count ? page->samples[(page->sample_count - 1) % PAGE_SAMPLES].time_us : 0;
}

/* Callers without a buffer get the size that they need: at least 1, even if there are none. */
static int answer_usages(unsigned *count, const void *into, unsigned there)
{
    unsigned room = *count;
    if (!room || !into) {
        *count = there ? there : 1;
        return INSUFFICIENT_SIZE;
    }
    *count = there;
    return !there ? NOT_FOUND : room < there ? INSUFFICIENT_SIZE : OK;
}

API nvmlDeviceGetProcessUtilization(handle device, struct process_sample *into, unsigned *count, uint64_t since)
{
    struct device d;
    int code = shared_open(device, count, &d);
    if (code != OK) return code;
    if (d.page.mig_mode) return NOT_SUPPORTED;
    uint64_t time = sampled_at(&d.page);
    unsigned there = take_processes(&d);
    code = answer_usages(count, into, time > since ? there : 0);
    for (unsigned i = 0; code == OK && i < there; i++)
        into[i] = (struct process_sample){(uint32_t)found[i].pid, time, found[i].usage, found[i].memory_usage, 0, 0};
    lock_give(&lock);
    return code;
}

API nvmlDeviceGetProcessesUtilizationInfo(handle device, struct process_usages *into)
{
    struct device d;
    int code = shared_open(device, into, &d);
    if (code != OK) return code;
    if (into->version != VERSION(*into, 1)) return VERSION_MISMATCH;
    if (d.page.mig_mode) return NOT_SUPPORTED;
    uint64_t time = sampled_at(&d.page);
    unsigned there = take_processes(&d);
    code = answer_usages(&into->count, into->processes, time > into->last_seen ? there : 0);
    for (unsigned i = 0; code == OK && i < there; i++)
        into->processes[i] = (struct process_usage){
            .time = time, .pid = (uint32_t)found[i].pid, .sm = found[i].usage, .memory = found[i].memory_usage,
        };
    lock_give(&lock);
    return code;
}

/* Only the first reading of a process has the time. */
static void fill_readings(struct process_readings *into, const struct process *process, uint64_t time)
{
    uint32_t pid = (uint32_t)process->pid;
    clear(into, sizeof *into);
    into->sm.sample = (struct value_sample){time, {.ull = process->usage}};
    into->memory.sample.value.ull = process->memory_usage;
    into->sm.pid = into->memory.pid = pid;
    into->encoder.pid = into->decoder.pid = into->jpeg.pid = into->ofa.pid = NO_PROCESS;
}

int process_samples(handle device, uint64_t since, unsigned *type, unsigned *count, struct process_readings *into)
{
    struct device d;
    int code = shared_open(device, count, &d);
    if (code != OK) return code;
    if (!type) return INVALID_ARGUMENT;
    if (d.page.mig_mode) return NOT_SUPPORTED;
    *type = TYPE_UINT;
    uint64_t time = sampled_at(&d.page);
    unsigned there = take_processes(&d);
    code = answer_usages(count, into, time > since ? there : 0);
    for (unsigned i = 0; code == OK && i < there; i++) fill_readings(&into[i], &found[i], time);
    lock_give(&lock);
    return code;
}
