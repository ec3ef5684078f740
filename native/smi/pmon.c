/* pmon: a line for each process of each card, again and again. */
#include <stdio.h>
#include <string.h>
#include "monitor.h"

static int shows(const struct monitor *monitor, char group)
{
    return strchr(monitor->values[M_SELECT] ? monitor->values[M_SELECT] : "u", group) != 0;
}

static void print_headings(const struct monitor *monitor, enum heading heading)
{
    static const char *const USAGE[] = {"sm", "mem", "enc", "dec", "jpg", "ofa"};
    int names = heading == NAMES;
    monitor_heading(monitor, heading);
    printf(" %11s %6s", names ? "pid" : "#", names ? "type" : "C/G");
    for (unsigned i = 0; shows(monitor, 'u') && i < 6; i++) printf(" %6s", names ? USAGE[i] : "%");
    if (shows(monitor, 'm')) printf(" %6s %6s", names ? "fb" : "MB", names ? "ccpm" : "MB");
    printf("    %s \n", names ? "command" : "name");
}

static void print_line(struct monitor *monitor, const struct gpu *gpu, const char *pid, const char *type,
                       const char *const usage[2], const char *const memory[2], const char *command)
{
    monitor_card(monitor, gpu);
    printf(" %10s %5s", pid, type);
    if (shows(monitor, 'u')) printf(" %6s %6s %6s %6s %6s %6s", usage[0], usage[1], "-", "-", "-", "-");
    if (shows(monitor, 'm')) printf(" %6s %6s", memory[0], memory[1]);
    printf("    %-15.15s\n", command);
}

static void print_process(struct monitor *monitor, const struct gpu *gpu, const struct process *process)
{
    char pid[16], usage[16], memory_usage[16], memory[32];
    const char *slash = strrchr(process->name, '/');
    snprintf(pid, sizeof pid, "%d", process->pid);
    snprintf(usage, sizeof usage, gpu->page.mig_mode ? "-" : "%u", process->usage);
    snprintf(memory_usage, sizeof memory_usage, gpu->page.mig_mode ? "-" : "%u", process->memory_usage);
    snprintf(memory, sizeof memory, "%llu", process_mebibytes(process));
    print_line(monitor, gpu, pid, "C", (const char *const[]){usage, memory_usage}, (const char *const[]){memory, "0"},
               slash && slash[1] ? slash + 1 : process->name);
}

static void print_round(struct monitor *monitor, int first)
{
    (void)first;
    const struct process *processes = 0;
    static const char *const NOTHING_USED[2] = {"-", "-"};
    int heads = monitor_heads(monitor);
    if (heads && !monitor->no_header) print_headings(monitor, NAMES);
    if (heads && !monitor->no_units) print_headings(monitor, UNITS);
    for (unsigned i = 0; i < monitor->machine.count; i++) {
        const struct gpu *gpu = &monitor->machine.gpu[i];
        unsigned many = gpu_processes(gpu, &processes);
        for (unsigned j = 0; j < many; j++) print_process(monitor, gpu, &processes[j]);
        if (!many) print_line(monitor, gpu, "-", "-", NOTHING_USED, NOTHING_USED, "-");
    }
}

static const struct monitoring AS = {"pmon", 10, M_HELP + 1};

int run_processes(int count, char **words)
{
    static struct monitor monitor;
    int code = monitor_open(&monitor, &AS, count, words);
    if (code < 0 && !shows(&monitor, 'u') && !shows(&monitor, 'm')) {
        puts("Failed to find any metric to display\nFailed to process command line \n");
        return EXIT_BAD_OPTION;
    }
    return code >= 0 ? code : monitor_run(&monitor, print_round);
}
