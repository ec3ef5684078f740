/* Commands about things that simulated cards do not have, or have in one state only. */
#include <stdio.h>
#include <string.h>
#include "smi.h"

static struct machine machine;

static int can_shift_boost(const struct page *page) { return page->capability >= 900; }

static void print_boost(void)
{
    static const char LINE[] = "+-------------------------------------------------+";
    if (!machine_any(&machine, can_shift_boost)) {
        puts("No supported devices found");
        return;
    }
    printf("%s\n"
           "| GPU Boost Slider                                |\n"
           "| GPU     Slider       Max Value    Current Value |\n"
           "|=================================================|\n", LINE);
    for (unsigned i = 0; i < machine.count; i++)
        if (can_shift_boost(&machine.gpu[i].page))
            printf("|%4u     vboost           4              0       |\n%s\n", machine.gpu[i].index, LINE);
}

static void print_policy(void)
{
    static const char LINE[] = "+-------------------------------------+";
    printf("%s\n"
           "| GPU compute policies:               |\n"
           "| GPU     Name           Value        |\n"
           "|=====================================|\n", LINE);
    for (unsigned i = 0; i < machine.count; i++)
        printf("|%4u   Timeslice       Default       |\n%s\n", machine.gpu[i].index, LINE);
}

static void print_virtual(void) { puts("No supported devices in vGPU mode"); }
static void print_hint(void) { puts("No supported devices found"); }
static void print_confidential(void) { puts("CC status: OFF"); }

/* Each answers one option; the one without an option answers by itself. */
static const struct minor { const char *name, *brief, *full; void (*print)(void); } MINORS[] = {
    {"vgpu", 0, 0, print_virtual},
    {"power-hint", "-l", "--list-info", print_hint},
    {"conf-compute", "-f", "--get-cc-feature", print_confidential},
    {"boost-slider", "-l", "--list", print_boost},
    {"compute-policy", "-l", "--list", print_policy},
    {"clocks", 0, 0, 0},
};

int run_minor(int count, char **words)
{
    const struct minor *minor = MINORS;
    while (strcmp(minor->name, words[-1])) minor++;
    const struct option options[] = {{minor->brief, minor->full, NOTHING}, {"-i", "--id", VALUE}, {"-h", "--help", NOTHING}};
    const char *values[3];
    int code = options_read(count, words, COMMAND, options, 3, values);
    if (code) return code;
    if (values[2] || !minor->print || (minor->brief && !values[0])) {
        print_command_help(minor->name);
        return EXIT_GOOD;
    }
    if ((code = machine_open(&machine, values[1]))) return code;
    minor->print();
    return EXIT_GOOD;
}
