/* Profiles of MIG: their numbers, and where instances of them fit. */
#include "mig.h"

enum { WITH_MEDIA = 7, WITH_MORE_MEMORY = 9, NO_KIND = ~0 };

static unsigned profile_count(const struct page *page)
{
    unsigned count = 0;
    while (count < PAGE_PROFILES && page->profiles[count].name[0]) count++;
    return count;
}

static int ends_with(const char *text, const char *end)
{
    size_t a = text_length(text), b = text_length(end);
    return a >= b && text_equal(text + a - b, end);
}

/* Kinds are numbered by slices; those with something extra come after them. */
static unsigned kind_of(const struct page *page, const struct profile *profile)
{
    static const unsigned BY_SLICES[] = {NO_KIND, 0, 1, 2, 3, NO_KIND, 6, 4, 5};
    if (profile->slices >= sizeof BY_SLICES / sizeof *BY_SLICES) return NO_KIND;
    if (ends_with(profile->name, "+me")) return profile->slices <= 2 ? WITH_MEDIA + profile->slices - 1 : NO_KIND;
    for (unsigned i = 0; i < profile_count(page); i++) {
        const struct profile *other = &page->profiles[i];
        int smaller = other->slices == profile->slices && other->memory_mib < profile->memory_mib;
        if (smaller && !ends_with(other->name, "+me"))
            return profile->slices == 1 ? WITH_MORE_MEMORY : NO_KIND;
    }
    return BY_SLICES[profile->slices];
}

const struct profile *profile_by_kind(const struct page *page, unsigned kind)
{
    for (unsigned i = 0; i < profile_count(page); i++)
        if (kind_of(page, &page->profiles[i]) == kind) return &page->profiles[i];
    return 0;
}

const struct profile *profile_by_id(const struct page *page, unsigned id)
{
    for (unsigned i = 0; i < profile_count(page); i++)
        if (page->profiles[i].id == id) return &page->profiles[i];
    return 0;
}

const struct profile *profile_of(const struct page *page, const struct instance *instance)
{
    return &page->profiles[instance->profile % PAGE_PROFILES];
}

const struct instance *instance_by_number(const struct page *page, unsigned number)
{
    for (unsigned i = 0; i < gpu_instance_count(page); i++)
        if (page->instances[i].gpu_instance == number) return &page->instances[i];
    return 0;
}

static unsigned compute_slices(const struct page *page)
{
    unsigned most = 0;
    for (unsigned i = 0; i < profile_count(page); i++)
        if (page->profiles[i].slices > most) most = page->profiles[i].slices;
    return most;
}

/* Memory comes in powers of two of a card's slices, of which there are eight, or four on the smallest cards. */
static unsigned memory_slices(const struct page *page, const struct profile *profile)
{
    unsigned all = compute_slices(page) > 4 ? 8 : 4, size = 1;
    uint64_t total = page->memory_total >> 20;
    if (!total) return all;
    uint64_t wanted = ((uint64_t)profile->memory_mib * all + total / 2) / total;
    while (size < wanted && size < all) size *= 2;
    return size;
}

unsigned placements_of(const struct page *page, const struct profile *profile, struct placement into[MAX_PLACEMENTS])
{
    unsigned size = memory_slices(page, profile), count = 0;
    for (unsigned start = 0; start + profile->slices <= compute_slices(page) && count < MAX_PLACEMENTS; start += size)
        into[count++] = (struct placement){start, size};
    return count;
}

static int is_free(const struct page *page, struct placement wanted)
{
    for (unsigned i = 0; i < gpu_instance_count(page); i++) {
        const struct instance *taken = &page->instances[i];
        if (wanted.start < taken->start + taken->slices && taken->start < wanted.start + wanted.size) return 0;
    }
    return 1;
}

unsigned capacity_left(const struct page *page, const struct profile *profile)
{
    struct placement places[MAX_PLACEMENTS];
    unsigned count = placements_of(page, profile, places), left = 0, same = 0;
    for (unsigned i = 0; i < count; i++) left += is_free(page, places[i]);
    for (unsigned i = 0; i < gpu_instance_count(page); i++) same += profile_of(page, &page->instances[i]) == profile;
    unsigned allowed = profile->most > same ? profile->most - same : 0;
    return left < allowed ? left : allowed;
}
