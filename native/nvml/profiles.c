/* Profiles of MIG: their numbers, and where instances of them fit. */
#include "mig.h"

const struct profile *profile_by_kind(const struct page *page, unsigned kind)
{
    const struct profile *profile;
    for (unsigned i = 0; kind < LAST_KIND && (profile = profile_at(page, i)); i++)
        if (kind_of(page, profile) == kind) return profile;
    return 0;
}

const struct profile *profile_by_id(const struct page *page, unsigned id)
{
    const struct profile *profile;
    for (unsigned i = 0; (profile = profile_at(page, i)); i++)
        if (profile->id == id) return profile;
    return 0;
}

const struct instance *instance_by_number(const struct page *page, unsigned number)
{
    for (unsigned i = 0; i < gpu_instance_count(page); i++)
        if (page->instances[i].gpu_instance == number) return &page->instances[i];
    return 0;
}

unsigned list_places(struct places places, struct placement *into)
{
    for (unsigned i = 0; into && i < places.count; i++) into[i] = (struct placement){i * places.width, places.width};
    return places.count;
}

int compute_by_kind(const struct page *page, const struct profile *within, unsigned kind, struct compute *into)
{
    struct compute kinds[PAGE_PROFILES];
    unsigned count = compute_kinds(page, within, kinds);
    for (unsigned i = 0; i < count; i++)
        if (kind == WHOLE ? kinds[i].whole : kinds[i].id == kind) {
            *into = kinds[i];
            return 1;
        }
    return 0;
}
