/* mig: the instances that a card can be cut into, and those that it is cut into. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "mig.h"

enum {
    G_PROFILES, G_PLACEMENTS, G_INSTANCES, G_COMPUTE, G_COMPUTE_PROFILES, G_COMPUTE_PLACEMENTS, G_CREATE, G_DESTROY,
    G_CREATE_COMPUTE, G_DESTROY_COMPUTE, G_DEFAULT, G_ID, G_INSTANCE, G_COMPUTE_INSTANCE, G_HELP, G_MANY,
};
static const struct option OPTIONS[G_MANY] = {
    [G_PROFILES] = {"-lgip", "--list-gpu-instance-profiles", NOTHING},
    [G_PLACEMENTS] = {"-lgipp", "--list-gpu-instance-possible-placements", NOTHING},
    [G_INSTANCES] = {"-lgi", "--list-gpu-instances", NOTHING},
    [G_COMPUTE] = {"-lci", "--list-compute-instances", NOTHING},
    [G_COMPUTE_PROFILES] = {"-lcip", "--list-compute-instance-profiles", NOTHING},
    [G_COMPUTE_PLACEMENTS] = {"-lcipp", "--list-compute-instance-possible-placements", NOTHING},
    [G_CREATE] = {"-cgi", "--create-gpu-instance", VALUE},
    [G_DESTROY] = {"-dgi", "--destroy-gpu-instance", NOTHING},
    [G_CREATE_COMPUTE] = {"-cci", "--create-compute-instance", MAYBE},
    [G_DESTROY_COMPUTE] = {"-dci", "--destroy-compute-instance", NOTHING},
    [G_DEFAULT] = {"-C", "--default-compute-instance", NOTHING},
    [G_ID] = {"-i", "--id", VALUE},
    [G_INSTANCE] = {"-gi", "--gpu-instance-id", VALUE},
    [G_COMPUTE_INSTANCE] = {"-ci", "--compute-instance-id", VALUE},
    [G_HELP] = {"-h", "--help", NOTHING},
};
static struct machine machine;

/* An instance, and what it is one of. */
struct found { const struct gpu *gpu; const struct instance *instance; const struct profile *profile; };
typedef void printing(const struct found *found);
static printing print_compute_instance;

int is_named(unsigned number, const char *numbers)
{
    if (!numbers) return 1;
    char copy[CELL], *rest = copy, *name;
    snprintf(copy, sizeof copy, "%s", numbers);
    while ((name = strsep(&rest, ",")))
        if (*name && strtoul(name, 0, 10) == number) return 1;
    return 0;
}

/* Add an instance of a kind to a list that is in the order of numbers. */
static void insert(const struct instance **list, unsigned *count, unsigned first, const struct instance *instance, unsigned (*number)(const struct instance *))
{
    unsigned at = (*count)++;
    for (; at > first && number(list[at - 1]) > number(instance); at--) list[at] = list[at - 1];
    list[at] = instance;
}

static unsigned gpu_number(const struct instance *instance) { return instance->gpu_instance; }
static unsigned compute_number(const struct instance *instance) { return instance->compute_instance; }

unsigned instances_by_kind(const struct page *page, const char *numbers, const struct instance *into[PAGE_INSTANCES])
{
    unsigned count = 0;
    for (unsigned kind = 0, first = 0; kind <= LAST_KIND; kind++, first = count)
        for (unsigned i = 0; i < gpu_instance_count(page); i++) {
            const struct instance *instance = &page->instances[i];
            if (!is_gpu_instance(page, instance) || !is_named(instance->gpu_instance, numbers)) continue;
            if (kind_of(page, instance_profile(page, instance)) == kind) insert(into, &count, first, instance, gpu_number);
        }
    return count;
}

unsigned computes_by_kind(const struct page *page, unsigned gpu_instance, const char *numbers, const struct instance *into[PAGE_INSTANCES])
{
    unsigned count = 0;
    for (unsigned kind = 0, first = 0; kind <= LAST_KIND; kind++, first = count)
        for (unsigned i = 0; i < page->instance_count; i++) {
            const struct instance *instance = &page->instances[i];
            if (instance->gpu_instance != gpu_instance || !is_named(instance->compute_instance, numbers)) continue;
            if (compute_of(page, instance).id == kind) insert(into, &count, first, instance, compute_number);
        }
    return count;
}

/* Print the compute instances of a GPU instance, after a title if nothing was printed before; returns how many there are. */
static unsigned print_computes(const struct found *within, const char *title, unsigned shown)
{
    const struct instance *instances[PAGE_INSTANCES];
    unsigned many = computes_by_kind(&within->gpu->page, within->instance->gpu_instance, 0, instances);
    for (unsigned i = 0; i < many; i++) {
        struct found found = {within->gpu, instances[i], within->profile};
        if (!i && !shown) fputs(title, stdout);
        print_compute_instance(&found);
    }
    return many;
}

/* Print the chosen instances, after a title, in the order of their kinds; the exit code. */
static int print_each(const char *numbers, const char *title, printing *print)
{
    unsigned shown = 0, there = 0;
    for (unsigned i = 0; i < machine.count; i++) {
        const struct page *page = &machine.gpu[i].page;
        const struct instance *instances[PAGE_INSTANCES];
        unsigned many = instances_by_kind(page, numbers, instances);
        for (unsigned j = 0; j < many; j++, there++) {
            struct found found = {&machine.gpu[i], instances[j], instance_profile(page, instances[j])};
            if (print == print_compute_instance) {
                shown += print_computes(&found, title, shown);
                continue;
            }
            if (!shown++) fputs(title, stdout);
            print(&found);
        }
    }
    if (!shown) printf("No %s instances found: Not Found\n", there ? "compute" : "GPU");
    return shown ? EXIT_GOOD : EXIT_NO_DEVICES;
}

/* GPU instances. */

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

static void print_places(struct places places)
{
    printf("Placement%s: {", places.count == 1 ? " " : "s");
    for (unsigned i = 0; i < places.count; i++) printf("%s%u", i ? "," : "", i * places.width);
    printf("}:%u\n", places.width);
}

static void print_placements(void)
{
    for (unsigned i = 0; i < machine.count; i++)
        for (unsigned j = 0; j < PAGE_PROFILES && machine.gpu[i].page.profiles[j].name[0]; j++) {
            const struct page *page = &machine.gpu[i].page;
            printf("GPU %2u Profile ID %2u ", machine.gpu[i].index, page->profiles[j].id);
            print_places(places_on(page, &page->profiles[j]));
        }
}

static void print_instance(const struct found *found)
{
    printf("|%4u  MIG %-18s%2u%9u%11u:%-6u|\n"
           "+---------------------------------------------------------+\n", found->gpu->index, found->profile->name, found->profile->id,
           found->instance->gpu_instance, found->instance->start, places_on(&found->gpu->page, found->profile).width);
}

static const char INSTANCES[] =
    "+---------------------------------------------------------+\n"
    "| GPU instances:                                          |\n"
    "| GPU   Name               Profile  Instance   Placement  |\n"
    "|                            ID       ID       Start:Size |\n"
    "|=========================================================|\n";

/* Compute instances: a GPU instance has one that fills it, or several smaller ones, or none. */

static void print_compute_instance(const struct found *found)
{
    struct compute kind = compute_of(&found->gpu->page, found->instance);
    char name[CELL];
    compute_name(found->profile, &kind, name);
    printf("|%4u%7u       MIG %-16s%2u%10u%11u:%-6u|\n"
           "+--------------------------------------------------------------------+\n", found->gpu->index,
           found->instance->gpu_instance, name, kind.id, found->instance->compute_instance,
           compute_start(&found->gpu->page, found->instance), kind.places.width);
}

static const char COMPUTE_INSTANCES[] =
    "+--------------------------------------------------------------------+\n"
    "| Compute instances:                                                 |\n"
    "| GPU     GPU       Name             Profile   Instance   Placement  |\n"
    "|       Instance                       ID        ID       Start:Size |\n"
    "|         ID                                                         |\n"
    "|====================================================================|\n";

static void print_compute_profiles(const struct found *found)
{
    struct compute kinds[PAGE_PROFILES];
    char name[CELL], free[32];
    const struct profile *shared = found->profile;
    unsigned many = compute_kinds(&found->gpu->page, found->profile, kinds);
    for (unsigned i = 0; i < many; i++) {
        compute_name(found->profile, &kinds[i], name);
        unsigned left = compute_free(&found->gpu->page, found->instance->gpu_instance, &kinds[i]);
        snprintf(free, sizeof free, "%u/%u", left, kinds[i].places.count);
        printf("|%4u%7u       MIG %-16s%2u%c     %-14s%-10u%-6u%-6u%-4u|\n", found->gpu->index, found->instance->gpu_instance, name,
               kinds[i].id, kinds[i].whole ? '*' : ' ', free, kinds[i].sm, shared->decoders, 0u, shared->ofas);
        printf("|%70s%-6u%-10u|\n"
               "+--------------------------------------------------------------------------------------+\n", "", shared->copy_engines,
               shared->jpegs);
    }
}

static const char COMPUTE_PROFILES[] =
    "+--------------------------------------------------------------------------------------+\n"
    "| Compute instance profiles:                                                           |\n"
    "| GPU     GPU       Name             Profile  Instances   Exclusive       Shared       |\n"
    "|       Instance                       ID     Free/Total     SM       DEC   ENC   OFA  |\n"
    "|         ID                                                          CE    JPEG       |\n"
    "|======================================================================================|\n";

static void print_compute_placements(const struct found *found)
{
    struct compute kinds[PAGE_PROFILES];
    unsigned many = compute_kinds(&found->gpu->page, found->profile, kinds);
    for (unsigned id = 0; id < LAST_KIND; id++)
        for (unsigned i = 0; i < many; i++) {
            if (kinds[i].id != id) continue;
            printf("GPU %2u GI %2u Profile ID %2u ", found->gpu->index, found->instance->gpu_instance, id);
            print_places(kinds[i].places);
        }
}

/* What a card that takes no settings answers. */
static int refuse(const char **values)
{
    unsigned first = 0;
    while (!is_cut(&machine.gpu[first].page)) first++;
    const char *profiles = values[G_CREATE];
    if (!profiles) puts("No GPU instances found: Insufficient Permissions");
    else printf("Unable to create a GPU instance on GPU %2u using profile %.*s: Insufficient Permissions\n"
                "Failed to create GPU instances: Insufficient Permissions\n", machine.gpu[first].index,
                (int)strcspn(profiles, ","), profiles);
    return READ_NO_PERMISSION;
}

static int is_settable(const struct page *page) { return is_cut(page) && page->control[0]; }

static int change(const char **values)
{
    if (!machine_any(&machine, is_settable)) return refuse(values);
    if (values[G_CREATE]) return create_instances(&machine, values[G_CREATE], values[G_DEFAULT] != 0);
    if (values[G_CREATE_COMPUTE]) return create_compute(&machine, values[G_CREATE_COMPUTE], values[G_INSTANCE]);
    if (values[G_DESTROY_COMPUTE]) return destroy_compute(&machine, values[G_INSTANCE], values[G_COMPUTE_INSTANCE]);
    return destroy_instances(&machine, values[G_INSTANCE]);
}

static int is_capable(const struct page *page) { return page->mig_capable != 0; }

static int answer(const char **values)
{
    const char *numbers = values[G_INSTANCE];
    int kinds = values[G_PROFILES] || values[G_PLACEMENTS];
    if (kinds && !machine_any(&machine, is_capable)) puts("No MIG-supported devices found.");
    else if (!kinds && !machine_any(&machine, is_cut)) puts("No MIG-enabled devices found.");
    else if (values[G_PROFILES]) print_profiles();
    else if (values[G_PLACEMENTS]) print_placements();
    else if (values[G_INSTANCES]) return print_each(0, INSTANCES, print_instance);
    else if (values[G_COMPUTE]) return print_each(numbers, COMPUTE_INSTANCES, print_compute_instance);
    else if (values[G_COMPUTE_PROFILES]) return print_each(numbers, COMPUTE_PROFILES, print_compute_profiles);
    else if (values[G_COMPUTE_PLACEMENTS]) return print_each(numbers, "", print_compute_placements);
    else return change(values);
    return EXIT_GOOD;
}

int run_mig(int count, char **words)
{
    const char *values[G_MANY];
    int code = options_read(count, words, COMMAND, OPTIONS, G_MANY, values), asked = 0;
    if (code) return code;
    for (int i = 0; i <= G_DESTROY_COMPUTE; i++) asked |= values[i] != 0;
    if (values[G_HELP] || !asked) {
        print_command_help("mig");
        return EXIT_GOOD;
    }
    code = machine_open(&machine, values[G_ID]);
    return code ? code : answer(values);
}
