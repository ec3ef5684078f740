/* A card's MIG profiles as its page has them, in the terms of NVML. */
#ifndef SIMGPU_MIG_H
#define SIMGPU_MIG_H

#include "library.h"
#include "slices.h"

#define WHOLE ~0u

const struct profile *profile_by_id(const struct page *page, unsigned id);
const struct profile *profile_by_kind(const struct page *page, unsigned kind);
/* Any GPU instance, with a compute instance or without; 0 if there is none. */
const struct instance *instance_by_number(const struct page *page, unsigned number);
/* The compute instances of that number that fit into such a GPU instance, or the one that fills it, WHOLE; whether there are any. */
int compute_by_kind(const struct page *page, const struct profile *within, unsigned kind, struct compute *into);
int has_compute(const struct device *d);
/* Places into a caller's list, if there is one, of at most MAX_SLICES; returns their number. */
unsigned list_places(struct places places, struct placement *into);

#endif
