/* A card's MIG profiles as its page has them, in the terms of NVML. */
#ifndef SIMGPU_MIG_H
#define SIMGPU_MIG_H

#include "library.h"
#include "slices.h"

enum { MAX_PLACEMENTS = 8 };

const struct profile *profile_by_id(const struct page *page, unsigned id);
const struct profile *profile_by_kind(const struct page *page, unsigned kind);
unsigned placements_of(struct places places, struct placement into[MAX_PLACEMENTS]);
/* Add the name of a MIG device, such as 1c.3g.71gb, at the end of a text; returns the new end. */
size_t name_mig_device(char *into, size_t end, const struct page *page, const struct instance *instance, size_t size);
/* The name of a profile, after slices of compute where it is for a part of an instance. */
void name_profile(char *into, size_t size, const char *slices, const struct profile *profile);

#endif
