/* What library and tool share: the cards whose pages this program can see, and the processes that use them. */
#ifndef SIMGPU_READER_H
#define SIMGPU_READER_H

#include <stddef.h>
#include "page.h"

/* NVML's codes for what can go wrong while reading. */
enum { READ_OK = 0, READ_NO_PERMISSION = 4, READ_NOT_LOADED = 9, READ_LOST = 15, READ_OTHER_VERSION = 18 };
enum { MAX_CARDS = 128, MAX_PROCESSES = 256, PROCESS_NAME = 256 };

/* A card is one page; in a container that has several of its MIG instances, one for each of them. Where all pages of a
 * node are brought along, device files say which instances of it are the container's. */
struct mapped { const struct page *page; size_t size; };
struct card { unsigned count; int by_device_files; struct mapped pages[PAGE_INSTANCES]; };
struct cards { unsigned count; struct card card[MAX_CARDS]; };

struct process {
    int pid;
    uint64_t memory;           /* bytes; together what the card has in use, or the reader's container of it */
    unsigned usage, memory_usage; /* percent */
    int gpu_instance, compute_instance; /* -1 without MIG */
    char name[PROCESS_NAME];
};

/* Map the pages that there are (see finding.h), in the order of the cards' indices. */
int cards_open(struct cards *cards);
void cards_close(struct cards *cards);

/* A copy of a page as it was at one moment; fields that an older writer does not know are 0. Instances of further pages are added. */
int card_read(const struct card *card, struct page *into);

/* Those that use the card: as its page lists them, or all but the calling process, by instance and pid. Returns their number. */
unsigned card_processes(const struct page *page, struct process *into, unsigned most);
/* Whether the page lists them for this reader. */
int lists_processes(const struct page *page);
/* The latter in two steps, for callers with several cards: list the processes, then what they have of a card, or of each of
 * its instances that is open. */
unsigned process_list(const struct page *page, struct process *into, unsigned most);
unsigned process_shares(const struct page *page, const struct process *all, unsigned count, struct process *into, unsigned most);

/* A process's name: the first word of its command line, or what the kernel calls it; 0 if there is no such process. */
int process_name(int pid, char *into, size_t size);

/* What cards differ in: whether their memory can have errors found, and whether that is on. */
static inline int has_ecc(const struct page *page)
{
    return page->ecc ? page->ecc != PAGE_ECC_NONE : page->inforom_ecc[0] != 0;
}

static inline int counts_errors(const struct page *page)
{
    return page->ecc ? page->ecc == PAGE_ECC_ON : page->inforom_ecc[0] != 0;
}

/* Whether it has spare rows in its memory, and says so: while it is divided it does not. */
static inline int remaps_rows(const struct page *page) { return page->row_remap_banks && !page->instance_count; }

/* What the slot can do: a virtual machine does not know it. */
static inline int has_host_generation(const struct page *page) { return !page->virtualization; }

enum { CLASS_3D_CONTROLLER = 0x0302 };
static inline unsigned pci_class(const struct page *page) { return page->pci_class ? page->pci_class : CLASS_3D_CONTROLLER; }

/* Cards for games have no clocks for applications. */
static inline int has_application_clocks(const struct page *page)
{
    const char *brand = page->brand, *other = "GeForce";
    while (*brand && *brand == *other) brand++, other++;
    return *brand != *other;
}

/* What a page has of instances: its MIG devices, and after them the GPU instances without a compute instance. */
static inline unsigned gpu_instance_count(const struct page *page) { return page->instance_count + page->bare_count; }

/* Processes that were recorded of a card: how many, and of one how long it had it open, and how much of that time it used it. */
static inline unsigned account_count(const struct page *page)
{
    unsigned count = 0;
    while (count < PAGE_ACCOUNTS && page->accounts[count].pid > 0) count++;
    return count;
}

static inline uint64_t account_us(const struct account *account)
{
    return account->last_us > account->start_us ? account->last_us - account->start_us : 0;
}

static inline uint64_t account_ms(const struct account *account) { return account_us(account) / 1000; }

static inline unsigned account_usage(const struct account *account, uint64_t busy)
{
    uint64_t time = account_us(account), percent = time ? busy / time : 0;
    return percent > 100 ? 100 : (unsigned)percent;
}

/* The n-th clock that the memory can have, highest first; 0 after the last. */
enum { MAX_MEMORY_CLOCKS = 8 };
static inline unsigned memory_clock_at(const struct page *page, unsigned n)
{
    enum { FIRST = sizeof page->memory_clocks / sizeof *page->memory_clocks };
    return n < FIRST ? page->memory_clocks[n] : n < MAX_MEMORY_CLOCKS ? page->more_memory_clocks[n - FIRST] : 0;
}

/* Send a setting to the owner of the card: its answer is one of NVML's codes. */
int card_set(const struct page *page, const char *setting, int64_t first, int64_t second);

#endif
