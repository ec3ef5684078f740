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

/* Whether a number is in a list such as 1,2; every number is in no list. */
int is_named(unsigned number, const char *numbers);
/* A card's GPU instances with these numbers, by kind and number; returns how many. */
unsigned instances_by_kind(const struct page *page, const char *numbers, const struct instance *into[PAGE_INSTANCES]);
int has_compute(const struct page *page, const struct instance *instance);

/* Changes (dividing.c): each prints what it did and returns the exit code. */
int create_instances(struct machine *machine, const char *profiles, int with_compute);
int create_compute(struct machine *machine, const char *profiles, const char *numbers);
int destroy_compute(struct machine *machine, const char *numbers, const char *compute);
int destroy_instances(struct machine *machine, const char *numbers);

/* A kind of compute instance within a GPU instance; `whole` is the one that fills it. */
struct compute { unsigned id, slices, sm; int whole; struct places places; };
/* By size; returns their number. */
unsigned compute_kinds(const struct page *page, const struct profile *within, struct compute into[PAGE_PROFILES]);

#endif
