/* A card's MIG profiles as its page has them, in the terms of NVML. */
#ifndef SIMGPU_MIG_H
#define SIMGPU_MIG_H

#include "library.h"

enum { MAX_PLACEMENTS = 8 };

const struct profile *profile_by_id(const struct page *page, unsigned id);
const struct profile *profile_by_kind(const struct page *page, unsigned kind);
const struct profile *profile_of(const struct page *page, const struct instance *instance);
/* Any GPU instance, with a compute instance or without; 0 if there is none. */
const struct instance *instance_by_number(const struct page *page, unsigned number);
/* The number of the compute instance that fills as many slices. */
unsigned compute_kind(unsigned slices);
int has_compute(const struct device *d);
unsigned placements_of(const struct page *page, const struct profile *profile, struct placement into[MAX_PLACEMENTS]);
unsigned capacity_left(const struct page *page, const struct profile *profile);

#endif
