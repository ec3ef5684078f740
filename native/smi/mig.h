/* MIG: kinds of instances, and where on a card, or within an instance, they fit. */
#ifndef SIMGPU_MIG_H
#define SIMGPU_MIG_H

#include "smi.h"

enum { MAX_SLICES = 8, LAST_KIND = 10 };

/* Where an instance of some size may start: at a multiple of its width. */
struct places { unsigned width, count; };
struct places places_on(const struct page *page, const struct profile *profile);
unsigned still_free(const struct page *page, const struct profile *profile);
/* The order in which the driver keeps GPU instances: up to LAST_KIND. */
unsigned kind_of(const struct page *page, const struct profile *profile);

/* A kind of compute instance within a GPU instance; `whole` is the one that fills it. */
struct compute { unsigned id, slices, sm; int whole; struct places places; };
/* By size; returns their number. */
unsigned compute_kinds(const struct page *page, const struct profile *within, struct compute into[PAGE_PROFILES]);

#endif
