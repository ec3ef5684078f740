/* How cards are cut: slices of memory and of compute, and what fits beside what. Library and tool share it. */
#ifndef SIMGPU_SLICES_H
#define SIMGPU_SLICES_H

#include "reader.h"

enum { MAX_SLICES = 8, LAST_KIND = 10 };

/* The profile of that place in a card's list; 0 after the last. */
const struct profile *profile_at(const struct page *page, unsigned place);
const struct profile *instance_profile(const struct page *page, const struct instance *instance);
/* Whether it is the first of those that the page has of a GPU instance: compute instances have one each. */
int is_gpu_instance(const struct page *page, const struct instance *instance);
/* Any GPU instance, with compute instances or without; 0 if there is none. */
const struct instance *instance_by_number(const struct page *page, unsigned number);

/* Where an instance of some size may start: at a multiple of its width. */
struct places { unsigned width, count; };
struct places places_on(const struct page *page, const struct profile *profile);
unsigned still_free(const struct page *page, const struct profile *profile);
/* NVML's number of a kind of GPU instance, and the order in which the driver keeps them; LAST_KIND for others. */
unsigned kind_of(const struct page *page, const struct profile *profile);

/* A kind of compute instance within a GPU instance; `whole` is the one that fills it. */
struct compute { unsigned id, slices, sm; int whole; struct places places; };
/* By size; returns their number. */
unsigned compute_kinds(const struct page *page, const struct profile *within, struct compute into[PAGE_PROFILES]);
/* The length of a profile's name for compute instances: the engines that a GPU instance has besides its slices are not in theirs. */
int size_of_name(const char *profile);
/* Whether a GPU instance of this profile can have compute instances of a kind. */
int compute_kind(const struct page *page, const struct profile *within, unsigned id, struct compute *into);
/* How many of a kind still fit into a GPU instance. */
unsigned compute_free(const struct page *page, unsigned gpu_instance, const struct compute *kind);

/* The compute instance of a MIG device: its kind, and its first slice within the GPU instance. */
struct compute compute_of(const struct page *page, const struct instance *instance);
unsigned compute_start(const struct page *page, const struct instance *instance);

#endif
