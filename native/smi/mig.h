/* nvidia-smi mig: instances that are chosen, and changes of them. */
#ifndef SIMGPU_MIG_H
#define SIMGPU_MIG_H

#include "slices.h"
#include "smi.h"

/* Whether a number is in a list such as 1,2; every number is in no list. */
int is_named(unsigned number, const char *numbers);
/* A card's GPU instances with these numbers, by kind and number; returns how many. */
unsigned instances_by_kind(const struct page *page, const char *numbers, const struct instance *into[PAGE_INSTANCES]);
/* The compute instances of a GPU instance with these numbers, by kind and number; returns how many. */
unsigned computes_by_kind(const struct page *page, unsigned gpu_instance, const char *numbers, const struct instance *into[PAGE_INSTANCES]);

/* Changes (dividing.c): each prints what it did and returns the exit code. */
int create_instances(struct machine *machine, const char *profiles, int with_compute);
int create_compute(struct machine *machine, const char *profiles, const char *numbers);
int destroy_compute(struct machine *machine, const char *numbers, const char *compute);
int destroy_instances(struct machine *machine, const char *numbers);

#endif
