/* Profiles of MIG by NVML's numbers, and where instances of them fit. */
#include "mig.h"

static unsigned profile_count(const struct page *page)
{
    unsigned count = 0;
    while (count < PAGE_PROFILES && page->profiles[count].name[0]) count++;
    return count;
}

const struct profile *profile_by_kind(const struct page *page, unsigned kind)
{
    for (unsigned i = 0; kind < LAST_KIND && i < profile_count(page); i++)
        if (kind_of(page, &page->profiles[i]) == kind) return &page->profiles[i];
    return 0;
}

const struct profile *profile_by_id(const struct page *page, unsigned id)
{
    for (unsigned i = 0; i < profile_count(page); i++)
        if (page->profiles[i].id == id) return &page->profiles[i];
    return 0;
}

unsigned placements_of(struct places places, struct placement into[MAX_PLACEMENTS])
{
    unsigned count = places.count < MAX_PLACEMENTS ? places.count : MAX_PLACEMENTS;
    for (unsigned i = 0; i < count; i++) into[i] = (struct placement){i * places.width, places.width};
    return count;
}

size_t name_mig_device(char *into, size_t end, const struct page *page, const struct instance *instance, size_t size)
{
    const struct profile *within = instance_profile(page, instance);
    unsigned slices = compute_of(page, instance).slices;
    if (slices < within->slices) {
        end = text_add_number(into, end, slices, size);
        end = text_add(into, end, "c.", size);
    }
    return text_add(into, end, within->name, size);
}
