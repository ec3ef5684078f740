/* mig: the instances that a card can be cut into, and those that it is cut into. */
#include <stdio.h>
#include <string.h>
#include "smi.h"

enum { G_PROFILES, G_PLACEMENTS, G_INSTANCES, G_COMPUTE, G_ID, G_HELP, G_MANY };
static const struct option OPTIONS[G_MANY] = {
    {"-lgip", "--list-gpu-instance-profiles", NOTHING}, {"-lgipp", "--list-gpu-instance-possible-placements", NOTHING},
    {"-lgi", "--list-gpu-instances", NOTHING}, {"-lci", "--list-compute-instances", NOTHING}, {"-i", "--id", VALUE},
    {"-h", "--help", NOTHING},
};
static struct machine machine;

/* Compute slices of the whole card. */
static unsigned whole(const struct page *page)
{
    unsigned most = 0;
    for (unsigned i = 0; i < PAGE_PROFILES && page->profiles[i].name[0]; i++)
        if (page->profiles[i].slices > most) most = page->profiles[i].slices;
    return most;
}

/* An instance starts at a multiple of its memory slices, and its compute slices must fit behind that. */
static unsigned placements(const struct page *page, const struct profile *profile, unsigned *into)
{
    unsigned many = 0, size = memory_slices(page, profile);
    for (unsigned start = 0; start < 8 && start + profile->slices <= whole(page); start += size) into[many++] = start;
    return many;
}

static unsigned taken(const struct page *page)
{
    unsigned mask = 0;
    for (unsigned i = 0; page->mig_mode && i < page->instance_count; i++) {
        const struct instance *instance = &page->instances[i];
        unsigned size = memory_slices(page, instance_profile(page, instance));
        if (instance->start < 8) mask |= ((1u << size) - 1) << instance->start;
    }
    return mask;
}

static unsigned still_free(const struct page *page, const struct profile *profile)
{
    unsigned starts[8], many = placements(page, profile, starts), size = memory_slices(page, profile), found = 0;
    for (unsigned i = 0; i < many; i++)
        if (!(taken(page) & ((1u << size) - 1) << starts[i])) found++;
    return found < profile->most ? found : profile->most;
}

static void print_profile(const struct gpu *gpu, const struct profile *profile)
{
    printf("|%4u  MIG %-16s%2u%6u/%-9u%-11.2f%-7s%-7u%-6u%-4u|\n", gpu->index, profile->name, profile->id,
           still_free(&gpu->page, profile), profile->most, profile->memory_mib / 1024.0, "No", profile->sm, profile->decoders, 0u);
    printf("|%64u     %-6u%-4u|\n", profile->copy_engines, profile->jpegs, profile->ofas);
    puts("+-------------------------------------------------------------------------------+");
}

static void print_profiles(void)
{
    puts("+-------------------------------------------------------------------------------+\n"
         "| GPU instance profiles:                                                        |\n"
         "| GPU   Name               ID    Instances   Memory     P2P    SM    DEC   ENC  |\n"
         "|                                Free/Total   GiB              CE    JPEG  OFA  |\n"
         "|===============================================================================|");
    for (unsigned i = 0; i < machine.count; i++)
        for (unsigned j = 0; j < PAGE_PROFILES && machine.gpu[i].page.profiles[j].name[0]; j++)
            print_profile(&machine.gpu[i], &machine.gpu[i].page.profiles[j]);
}

static void print_placements(void)
{
    for (unsigned i = 0; i < machine.count; i++)
        for (unsigned j = 0; j < PAGE_PROFILES && machine.gpu[i].page.profiles[j].name[0]; j++) {
            const struct page *page = &machine.gpu[i].page;
            unsigned starts[8], many = placements(page, &page->profiles[j], starts);
            printf("GPU %2u Profile ID %2u Placement%s: {", machine.gpu[i].index, page->profiles[j].id, many == 1 ? " " : "s");
            for (unsigned k = 0; k < many; k++) printf("%s%u", k ? "," : "", starts[k]);
            printf("}:%u\n", memory_slices(page, &page->profiles[j]));
        }
}

static void print_instances(void)
{
    static const char LINE[] = "+---------------------------------------------------------+";
    printf("%s\n"
           "| GPU instances:                                          |\n"
           "| GPU   Name               Profile  Instance   Placement  |\n"
           "|                            ID       ID       Start:Size |\n"
           "|=========================================================|\n", LINE);
    for (unsigned i = 0; i < machine.count; i++)
        for (unsigned j = 0; j < machine.gpu[i].page.instance_count; j++) {
            const struct page *page = &machine.gpu[i].page;
            const struct instance *instance = &page->instances[j];
            const struct profile *profile = instance_profile(page, instance);
            printf("|%4u  MIG %-18s%2u%9u%11u:%-6u|\n%s\n", machine.gpu[i].index, profile->name, profile->id,
                   instance->gpu_instance, instance->start, memory_slices(page, profile), LINE);
        }
}

/* Compute instances that fill their GPU instance are numbered by its size. */
static unsigned compute_profile(unsigned slices)
{
    return slices == 7 ? 4 : slices ? slices - 1 : 0;
}

static void print_compute_instances(void)
{
    static const char LINE[] = "+--------------------------------------------------------------------+";
    printf("%s\n"
           "| Compute instances:                                                 |\n"
           "| GPU     GPU       Name             Profile   Instance   Placement  |\n"
           "|       Instance                       ID        ID       Start:Size |\n"
           "|         ID                                                         |\n"
           "|====================================================================|\n", LINE);
    for (unsigned i = 0; i < machine.count; i++)
        for (unsigned j = 0; j < machine.gpu[i].page.instance_count; j++) {
            const struct page *page = &machine.gpu[i].page;
            const struct instance *instance = &page->instances[j];
            const struct profile *profile = instance_profile(page, instance);
            printf("|%4u%7u       MIG %-16s%2u%10u%11u:%-6u|\n%s\n", machine.gpu[i].index, instance->gpu_instance, profile->name,
                   compute_profile(profile->slices), instance->compute_instance, 0u, profile->slices, LINE);
        }
}

static int any(int (*has)(const struct page *page))
{
    for (unsigned i = 0; i < machine.count; i++)
        if (has(&machine.gpu[i].page)) return 1;
    return 0;
}

static int is_capable(const struct page *page) { return page->mig_capable != 0; }
static int is_cut(const struct page *page) { return page->mig_mode != 0; }

int run_mig(int count, char **words)
{
    const char *values[G_MANY];
    int code = options_read(count, words, COMMAND, OPTIONS, G_MANY, values);
    if (code) return code;
    int kinds = values[G_PROFILES] || values[G_PLACEMENTS], cuts = values[G_INSTANCES] || values[G_COMPUTE];
    if (values[G_HELP] || !(kinds || cuts)) {
        print_command_help("mig");
        return EXIT_GOOD;
    }
    if ((code = machine_open(&machine, values[G_ID]))) return code;
    if (kinds && !any(is_capable)) puts("No MIG-supported devices found.");
    else if (cuts && !any(is_cut)) puts("No MIG-enabled devices found.");
    else if (values[G_PROFILES]) print_profiles();
    else if (values[G_PLACEMENTS]) print_placements();
    else if (values[G_INSTANCES]) print_instances();
    else print_compute_instances();
    return EXIT_GOOD;
}
