/* A card's MIG profiles as its page has them, in the terms of NVML. */
#ifndef SIMGPU_MIG_H
#define SIMGPU_MIG_H

#include "library.h"
#include "slices.h"

const struct profile *profile_by_id(const struct page *page, unsigned id);
const struct profile *profile_by_kind(const struct page *page, unsigned kind);
/* Places into a caller's list, if there is one, of at most MAX_SLICES; returns their number. */
unsigned list_places(struct places places, struct placement *into);
/* Add the name of a compute instance of so many slices, such as 1c.3g.71gb, at the end of a text. */
void name_compute(char *into, size_t end, size_t size, const struct profile *within, unsigned slices);

#endif
