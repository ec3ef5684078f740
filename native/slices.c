/* How cards are cut: slices of memory and of compute, and what fits beside what. */
#include "slices.h"

enum { MORE_MEDIA = 7, MORE_MEMORY = 9, SMALL_AND_WIDE = 7 };

const struct profile *profile_at(const struct page *page, unsigned place)
{
    return place < PAGE_PROFILES && page->profiles[place].name[0] ? &page->profiles[place] : 0;
}

int size_of_name(const char *profile)
{
    int size = 0;
    while (profile[size] && profile[size] != '+') size++;
    return size;
}

const struct profile *instance_profile(const struct page *page, const struct instance *instance)
{
    return &page->profiles[instance->profile < PAGE_PROFILES ? instance->profile : PAGE_PROFILES - 1];
}

int is_gpu_instance(const struct page *page, const struct instance *instance)
{
    return instance == page->instances || instance[-1].gpu_instance != instance->gpu_instance;
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
    for (unsigned i = 0; profile_at(page, i); i++)
        if (page->profiles[i].slices > most) most = page->profiles[i].slices;
    return most < MAX_SLICES ? most : MAX_SLICES;
}

static unsigned all_slices(const struct page *page) { return compute_slices(page) > 4 ? 8 : 4; }

/* Memory is cut into eight slices (four on small cards), and an instance takes one, two, four or all of them. */
static unsigned memory_slices(const struct page *page, const struct profile *profile)
{
    uint64_t all = all_slices(page), total = page->memory_total >> 20, many = 1;
    if (!total) return (unsigned)all;
    uint64_t wanted = (profile->memory_mib * all + total / 2) / total;
    while (many < all && many < wanted) many *= 2;
    return (unsigned)many;
}

struct places places_on(const struct page *page, const struct profile *profile)
{
    struct places places = {memory_slices(page, profile), 0};
    while (places.count * places.width + profile->slices <= compute_slices(page) && places.count < MAX_SLICES) places.count++;
    return places;
}

static unsigned mask_of(unsigned start, unsigned width)
{
    return start < MAX_SLICES && width <= MAX_SLICES ? ((1u << width) - 1) << start : 0;
}

static unsigned free_places(struct places places, unsigned taken)
{
    unsigned found = 0;
    for (unsigned i = 0; i < places.count; i++) found += !(taken & mask_of(i * places.width, places.width));
    return found;
}

unsigned still_free(const struct page *page, const struct profile *profile)
{
    unsigned taken = 0, same = 0;
    for (unsigned i = 0; i < gpu_instance_count(page); i++) {
        const struct instance *instance = &page->instances[i];
        if (!is_gpu_instance(page, instance)) continue;
        taken |= mask_of(instance->start, memory_slices(page, instance_profile(page, instance)));
        same += instance_profile(page, instance) == profile;
    }
    unsigned found = free_places(places_on(page, profile), taken), allowed = profile->most > same ? profile->most - same : 0;
    return found < allowed ? found : allowed;
}

/* The driver's numbers for sizes, and for what has more than its size. */
static unsigned number_of(unsigned slices)
{
    static const unsigned NUMBERS[] = {LAST_KIND, 0, 1, 2, 3, LAST_KIND, 6, 4, 5};
    return NUMBERS[slices <= MAX_SLICES ? slices : 0];
}

static int has_extras(const struct profile *profile) { return profile->name[size_of_name(profile->name)] != 0; }

/* The plain profile of as many compute slices and less memory, if there is one. */
static const struct profile *smaller(const struct page *page, const struct profile *profile)
{
    for (unsigned i = 0; profile_at(page, i); i++) {
        const struct profile *other = profile_at(page, i);
        if (other->slices == profile->slices && other->memory_mib < profile->memory_mib && !has_extras(other)) return other;
    }
    return 0;
}

unsigned kind_of(const struct page *page, const struct profile *profile)
{
    if (has_extras(profile)) return profile->slices <= 2 ? MORE_MEDIA + profile->slices - 1 : LAST_KIND;
    if (!smaller(page, profile)) return number_of(profile->slices);
    return profile->slices == 1 ? MORE_MEMORY : LAST_KIND;
}

static unsigned least(unsigned a, unsigned b) { return a < b ? a : b; }

unsigned compute_kinds(const struct page *page, const struct profile *within, struct compute into[PAGE_PROFILES])
{
    unsigned count = 0, room = memory_slices(page, within);
    for (unsigned i = 0; profile_at(page, i); i++) {
        const struct profile *kind = profile_at(page, i), *less = smaller(page, kind);
        unsigned width = memory_slices(page, kind);
        if (!kind->slices || kind->slices > within->slices || width > room || has_extras(kind)) continue;
        if (less && less->sm == kind->sm) continue; /* no more than the smaller one */
        if (width == room && kind->slices > 1 && kind->slices < within->slices) continue; /* would waste the rest */
        struct places places = {width, least(within->slices / kind->slices, room / width)};
        int whole = kind->slices == within->slices && kind->sm == within->sm;
        into[count++] = (struct compute){less ? SMALL_AND_WIDE : number_of(kind->slices), kind->slices, kind->sm, whole, places};
    }
    return count;
}

int compute_kind(const struct page *page, const struct profile *within, unsigned id, struct compute *into)
{
    struct compute kinds[PAGE_PROFILES];
    unsigned many = compute_kinds(page, within, kinds);
    for (unsigned i = 0; i < many; i++)
        if (kinds[i].id == id) {
            *into = kinds[i];
            return 1;
        }
    return 0;
}

static const struct portion *portion_of(const struct page *page, const struct instance *instance)
{
    return &page->portions[instance - page->instances];
}

struct compute compute_of(const struct page *page, const struct instance *instance)
{
    const struct profile *within = instance_profile(page, instance);
    const struct portion *portion = portion_of(page, instance);
    struct compute kinds[PAGE_PROFILES], filling = {LAST_KIND, within->slices, within->sm, 1, {memory_slices(page, within), 1}};
    unsigned many = compute_kinds(page, within, kinds);
    for (unsigned i = 0; i < many; i++) {
        if (portion->partial ? kinds[i].id == portion->kind : kinds[i].whole) return kinds[i];
    }
    return filling;
}

unsigned compute_start(const struct page *page, const struct instance *instance)
{
    return portion_of(page, instance)->start;
}

unsigned compute_free(const struct page *page, unsigned gpu_instance, const struct compute *kind)
{
    unsigned taken = 0;
    for (unsigned i = 0; i < page->instance_count; i++) {
        const struct instance *instance = &page->instances[i];
        if (instance->gpu_instance != gpu_instance) continue;
        if (!portion_of(page, instance)->partial) return 0;
        taken |= mask_of(compute_start(page, instance), compute_of(page, instance).places.width);
    }
    return free_places(kind->places, taken);
}
