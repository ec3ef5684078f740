/* mig -cgi, -cci, -dci, -dgi: the owner of the cards divides them, and its answers are passed on in the driver's words. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "mig.h"

enum { ANYWHERE = 255, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, WIDTH = 64 };

/* Give the message that ends a command after an error; the exit code. */
static int fail(const char *verb, const char *what, int code)
{
    printf("Failed to %s %s instances: %s\n", verb, what, code_text(code));
    return code;
}

static const struct profile *profile_called(const struct page *page, const char *name)
{
    char *end;
    unsigned long id = strtoul(name, &end, 10);
    if (!strncmp(name, "MIG ", 4)) name += 4;
    for (unsigned i = 0; i < PAGE_PROFILES && page->profiles[i].name[0]; i++)
        if ((*name && !*end && page->profiles[i].id == id) || !strcmp(page->profiles[i].name, name)) return &page->profiles[i];
    return 0;
}

/* The kind of compute instance that is called like this: by its number or name, or that which fills the GPU instance. */
static int kind_called(const struct page *page, const struct profile *within, const char *given, struct compute *into)
{
    struct compute kinds[PAGE_PROFILES];
    char name[CELL], *end;
    unsigned many = compute_kinds(page, within, kinds);
    unsigned long id = strtoul(given, &end, 10);
    int numbered = *given && !*end;
    if (!strncmp(given, "MIG ", 4)) given += 4;
    for (unsigned i = 0; i < many; i++) {
        compute_name(within, &kinds[i], name);
        if (!*given ? !kinds[i].whole : numbered ? kinds[i].id != id : strcmp(given, name) != 0) continue;
        if (*given && !numbered && !kinds[i].whole && kinds[i].slices == within->slices) continue; /* named like the whole */
        *into = kinds[i];
        return 1;
    }
    return 0;
}

static const struct instance *new_compute(const struct page *before, const struct page *now, unsigned number)
{
    const struct instance *old[PAGE_INSTANCES], *all[PAGE_INSTANCES];
    unsigned were = computes_by_kind(before, number, 0, old), are = computes_by_kind(now, number, 0, all), same = 0;
    for (unsigned i = 0; i < are; i++) {
        for (same = 0; same < were && old[same]->compute_instance != all[i]->compute_instance; same++) {}
        if (same == were) return all[i];
    }
    return 0;
}

/* Make a compute instance within a GPU instance; NVML's code. */
static int fill(const struct machine *machine, struct gpu *gpu, unsigned number, const char *given)
{
    struct page before = gpu->page;
    const struct instance *instance = instance_by_number(&before, number);
    const struct profile *profile = instance ? instance_profile(&before, instance) : 0;
    struct compute kind = {0};
    char name[CELL];
    int code = !profile ? NOT_FOUND : !kind_called(&before, profile, given, &kind) ? NOT_SUPPORTED
             : card_set(&before, "create_compute_instance", number, (kind.id + 1) | ANYWHERE << 8);
    if (code) {
        snprintf(name, sizeof name, "%u", kind.id);
        printf("Unable to create a compute instance on GPU %2u GPU instance ID %2u using profile %s: %s\n", gpu->index, number,
               *given ? given : name, code_text(code));
        return code;
    }
    gpu_refresh(machine, gpu);
    const struct instance *made = new_compute(&before, &gpu->page, number);
    compute_name(profile, &kind, name);
    printf("Successfully created compute instance ID %2u on GPU %2u GPU instance ID %2u using profile MIG %s (ID %2u)\n",
           made ? made->compute_instance : 0, gpu->index, number, name, kind.id);
    return 0;
}

/* Make a GPU instance; NVML's code, and the number that it got. */
static int create(const struct machine *machine, struct gpu *gpu, const char *given, unsigned *number)
{
    char name[WIDTH];
    snprintf(name, sizeof name, "%s", given);
    char *colon = strchr(name, ':'), *end = "";
    unsigned long start = ANYWHERE;
    if (colon) {
        *colon++ = 0;
        start = strtoul(colon, &end, 10);
    }
    struct page before = gpu->page;
    const struct profile *profile = profile_called(&before, name);
    int code = !profile || *end || (colon && (!*colon || start >= ANYWHERE)) ? INVALID
             : card_set(&before, "create_gpu_instance", profile->id, (int64_t)start);
    if (code) {
        printf("Unable to create a GPU instance on GPU %2u using profile %s: %s\n", gpu->index, name, code_text(code));
        return code;
    }
    gpu_refresh(machine, gpu);
    for (unsigned i = 0; i < gpu_instance_count(&gpu->page); i++)
        if (!instance_by_number(&before, gpu->page.instances[i].gpu_instance)) *number = gpu->page.instances[i].gpu_instance;
    printf("Successfully created GPU instance ID %2u on GPU %2u using profile MIG %s (ID %2u)\n", *number, gpu->index, profile->name,
           profile->id);
    return 0;
}

int create_instances(struct machine *machine, const char *profiles, int with_compute)
{
    for (unsigned i = 0; i < machine->count; i++) {
        char copy[CELL], *rest = copy, *name;
        if (!is_cut(&machine->gpu[i].page)) continue;
        snprintf(copy, sizeof copy, "%s", profiles);
        while ((name = strsep(&rest, ","))) {
            unsigned number = 0;
            int code = create(machine, &machine->gpu[i], name, &number);
            if (code) return fail("create", "GPU", code);
            code = with_compute ? fill(machine, &machine->gpu[i], number, "") : 0;
            if (code) return fail("create", "compute", code);
        }
    }
    return EXIT_GOOD;
}

/* Numbers of the chosen instances of a card, as they are before a change. */
static unsigned chosen(const struct page *page, const char *numbers, unsigned into[PAGE_INSTANCES])
{
    const struct instance *found[PAGE_INSTANCES];
    unsigned many = instances_by_kind(page, numbers, found);
    for (unsigned i = 0; i < many; i++) into[i] = found[i]->gpu_instance;
    return many;
}

static int say_none(const char *what)
{
    printf("No %s instances found: Not Found\n", what);
    return EXIT_NO_DEVICES;
}

/* Do something to each of the chosen instances, until it fails. */
typedef int changing(const struct machine *machine, struct gpu *gpu, unsigned number, const char *given);

static int change_each(struct machine *machine, const char *numbers, changing *change, const char *given, const char *verb, const char *what)
{
    unsigned seen = 0, done = 0;
    for (unsigned i = 0; i < machine->count; i++) {
        unsigned list[PAGE_INSTANCES], many = chosen(&machine->gpu[i].page, numbers, list);
        for (unsigned j = 0; j < many; j++, seen++) {
            int code = change(machine, &machine->gpu[i], list[j], given);
            if (code > 0) return fail(verb, what, code);
            done += code == 0;
        }
    }
    return done ? EXIT_GOOD : say_none(seen ? what : "GPU");
}

static int create_one(const struct machine *machine, struct gpu *gpu, unsigned number, const char *profiles)
{
    char copy[CELL], *rest = copy, *name;
    snprintf(copy, sizeof copy, "%s", profiles);
    for (int code; (name = strsep(&rest, ","));)
        if ((code = fill(machine, gpu, number, name))) return code;
    return 0;
}

/* Destroy the chosen compute instances of a GPU instance until it fails: 0, NVML's code, or -1 if there is none. */
static int destroy_each(const struct machine *machine, struct gpu *gpu, unsigned number, const char *compute)
{
    const struct instance *found[PAGE_INSTANCES];
    unsigned ids[PAGE_INSTANCES], many = computes_by_kind(&gpu->page, number, *compute ? compute : 0, found);
    for (unsigned i = 0; i < many; i++) ids[i] = found[i]->compute_instance;
    for (unsigned i = 0; i < many; i++) {
        int code = card_set(&gpu->page, "destroy_compute_instance", number, ids[i]);
        if (code) printf("Unable to destroy compute instance ID %2u from GPU %2u GPU instance ID %2u: %s\n", ids[i], gpu->index, number, code_text(code));
        else printf("Successfully destroyed compute instance ID %2u from GPU %2u GPU instance ID %2u\n", ids[i], gpu->index, number);
        if (code) return code;
        gpu_refresh(machine, gpu);
    }
    return many ? 0 : -1;
}

static int destroy_whole(const struct machine *machine, struct gpu *gpu, unsigned number, const char *unused)
{
    (void)unused;
    int code = card_set(&gpu->page, "destroy_gpu_instance", number, 0);
    if (code) printf("Unable to destroy GPU instance ID %2u from GPU %2u: %s\n", number, gpu->index, code_text(code));
    else printf("Successfully destroyed GPU instance ID %2u from GPU %2u\n", number, gpu->index);
    if (!code) gpu_refresh(machine, gpu);
    return code;
}

int create_compute(struct machine *machine, const char *profiles, const char *numbers)
{
    return change_each(machine, numbers, create_one, profiles, "create", "compute");
}

int destroy_compute(struct machine *machine, const char *numbers, const char *compute)
{
    return change_each(machine, numbers, destroy_each, compute ? compute : "", "destroy", "compute");
}

int destroy_instances(struct machine *machine, const char *numbers)
{
    return change_each(machine, numbers, destroy_whole, "", "destroy", "GPU");
}
