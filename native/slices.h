/* MIG, as library and tool share it: kinds of instances, and where on a card, or within an instance, they fit. */
#ifndef SIMGPU_SLICES_H
#define SIMGPU_SLICES_H

#include "page.h"

enum { MAX_SLICES = 8, LAST_KIND = 10 };

const struct profile *instance_profile(const struct page *page, const struct instance *instance);

/* The profile of that place in a card's list; 0 after the last. */
const struct profile *profile_at(const struct page *page, unsigned place);

/* Where an instance of some size may start: at a multiple of its width. */
struct places { unsigned width, count; };
struct places places_on(const struct page *page, const struct profile *profile);
unsigned still_free(const struct page *page, const struct profile *profile);

/* The driver's number for a kind of GPU instances, which is also the order it keeps them in; LAST_KIND: it has none. */
unsigned kind_of(const struct page *page, const struct profile *profile);

/* A kind of compute instance within a GPU instance; `whole` is the one that fills it. */
struct compute { unsigned id, slices, sm; int whole; struct places places; };
/* By size; returns their number. */
unsigned compute_kinds(const struct page *page, const struct profile *within, struct compute into[PAGE_PROFILES]);

/* The length of a profile's name for compute instances: the engines that a GPU instance has besides its slices are not in theirs. */
int size_of_name(const char *profile);

#endif
