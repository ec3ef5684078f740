/* A card's MIG profiles as its page has them, in the terms of NVML. */
#ifndef SIMGPU_MIG_H
#define SIMGPU_MIG_H

#include "library.h"

enum { MAX_PLACEMENTS = 8 };

const struct profile *profile_by_id(const struct page *page, unsigned id);
const struct profile *profile_by_kind(const struct page *page, unsigned kind);
const struct profile *profile_of(const struct page *page, const struct instance *instance);
unsigned placements_of(const struct page *page, const struct profile *profile, struct placement into[MAX_PLACEMENTS]);
unsigned capacity_left(const struct page *page, const struct profile *profile);

#endif
