/* What library and tool share: the cards whose pages this program can see, and the processes that use them. */
#ifndef SIMGPU_READER_H
#define SIMGPU_READER_H

#include <stddef.h>
#include "page.h"

/* NVML's codes for what can go wrong while reading. */
enum { READ_OK = 0, READ_NO_PERMISSION = 4, READ_NOT_LOADED = 9, READ_LOST = 15, READ_OTHER_VERSION = 18 };
enum { MOST_CARDS = 128, MOST_PROCESSES = 256, PROCESS_NAME = 256 };

struct card { const struct page *page; size_t size; };
struct cards { unsigned count; struct card card[MOST_CARDS]; };

struct process {
    int pid;
    uint64_t memory;           /* bytes; those of all processes add up to what the card has in use */
    unsigned usage, memory_usage; /* percent */
    int gpu_instance, compute_instance; /* -1 without MIG */
    char name[PROCESS_NAME];
};

/* Map the pages in SIMGPU_PAGES, or in /var/lib/simgpu/gpus, in the order of the cards' indices. */
int cards_open(struct cards *cards);
void cards_close(struct cards *cards);

/* A copy of a page as it was at one moment; fields that an older writer does not know are 0. */
int card_read(const struct card *card, struct page *into);

/* Those that use the card: as its page lists them, or all but the one that asks, by pid. Returns their number. */
unsigned card_processes(const struct page *page, struct process *into, unsigned most);
/* The latter in two steps, for whoever asks about several cards: who they are, and what each has of a card. */
unsigned process_list(const struct page *page, struct process *into, unsigned most);
void process_shares(const struct page *page, struct process *processes, unsigned count);

/* A process's name: the first word of its command line, or what the kernel calls it; 0 if there is no such process. */
int process_name(int pid, char *into, size_t size);

/* Send a setting to the owner of the card: its answer is one of NVML's codes. */
int card_set(const struct page *page, const char *setting, int64_t first, int64_t second);

#endif
