/* Profiles of MIG by NVML's numbers, and where instances of them fit. */
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

unsigned list_places(struct places places, struct placement *into)
{
    for (unsigned i = 0; into && i < places.count; i++) into[i] = (struct placement){i * places.width, places.width};
    return places.count;
}

void name_compute(char *into, size_t end, size_t size, const struct profile *within, unsigned slices)
{
    if (slices < within->slices) {
        end = text_add_number(into, end, slices, size);
        end = text_add(into, end, "c.", size);
    }
    size_t whole = end + (size_t)size_of_name(within->name) + 1;
    text_add(into, end, within->name, whole < size ? whole : size);
}
