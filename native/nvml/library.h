/* How a function of the library gets at a card: a copy of its page, or the code to answer with. */
#ifndef SIMGPU_LIBRARY_H
#define SIMGPU_LIBRARY_H

#include "nvml.h"
#include "reader.h"
#include "sys.h"

#define EXPORTED __attribute__((visibility("default")))
#define API EXPORTED int

struct device {
    struct page page;
    unsigned card;
    const struct instance *instance; /* of the page above, for a handle of a MIG device; else 0 */
};

/* What nvmlInit and nvmlShutdown do: all uses are counted, and the last one gone closes the pages. */
int library_start(void);
int library_stop(void);

/* OK between the two. */
int library_ready(void);
unsigned card_count(void);

/* The page of the card of that number. */
int card_page(unsigned card, struct page *into);

/* The card, or part of one, behind a handle. Only its address is looked at: a handle may be anything. */
int device_open(handle handle, struct device *device);
/* The same for functions that have to put their answer somewhere. */
int any_open(handle handle, const void *into, struct device *device);
/* The same for functions that know whole cards only. */
int gpu_open(handle handle, const void *into, struct device *device);
/* The same for what the parts of a card share: instances have no value of their own. */
int shared_open(handle handle, const void *into, struct device *device);

handle device_handle(unsigned card);
handle mig_handle(unsigned card, const struct instance *instance);
handle gpu_instance_handle(unsigned card, const struct instance *instance);
handle compute_instance_handle(unsigned card, const struct instance *instance);
int gpu_instance_open(handle handle, const void *into, struct device *device);
int compute_instance_open(handle handle, const void *into, struct device *device);

/* Text into a caller's room, or INSUFFICIENT_SIZE. */
int answer_text(char *into, unsigned size, const char *text);

/* Lists: `count` is the capacity, and afterwards the number of entries. */
int answer_count(unsigned *count, const void *into, unsigned there);

void clear(void *at, size_t size);

/* Settings that the private table makes as well. */
API nvmlDeviceSetPersistenceMode(handle device, unsigned mode);

/* Processes as the private table lists them: by type, each with its name; and what they do. */
int compute_processes_named(handle device, unsigned *count, struct process_named *into);
int graphics_processes_named(handle device, unsigned *count);
int mps_processes_named(handle device, unsigned *count);
int process_samples(handle device, uint64_t since, unsigned *type, unsigned *count, struct process_readings *into);
unsigned link_version(const struct page *page);
/* [domain:]bus:device[.function]; whether it is one. */
int parse_address(const char *text, unsigned address[3]);
struct pci pci_of(unsigned domain, unsigned bus, unsigned device, unsigned id, unsigned subsystem);

/* Held by a process; one that a fork brought along does not count. */
struct lock { int holder; };
void lock_take(struct lock *lock);
void lock_give(struct lock *lock);

/* A getter of one figure, for cards that fulfil a condition; both may use `page`. */
#define FIGURE(open, function, type, condition, value_) \
    API function(handle device, type *into) \
    { \
        struct device d; \
        const struct page *page = &d.page; \
        int code = open(device, into, &d); \
        (void)page; \
        if (code == OK && !(condition)) code = NOT_SUPPORTED; \
        if (code == OK) *into = (type)(value_); \
        return code; \
    }

#define NUMBER(function, type, value_) FIGURE(gpu_open, function, type, 1, value_)
#define NUMBER_IF(function, type, condition, value_) FIGURE(gpu_open, function, type, condition, value_)
#define SHARED_NUMBER(function, type, value_) FIGURE(shared_open, function, type, 1, value_)
#define SHARED_NUMBER_IF(function, type, condition, value_) FIGURE(shared_open, function, type, condition, value_)

#define TEXT_BY(open, function, value_) \
    API function(handle device, char *into, unsigned size) \
    { \
        struct device d; \
        const struct page *page = &d.page; \
        int code = open(device, into, &d); \
        return code == OK ? answer_text(into, size, value_) : code; \
    }

#define TEXT(function, value_) TEXT_BY(gpu_open, function, value_)
#define SHARED_TEXT(function, value_) TEXT_BY(shared_open, function, value_)

/* A getter to which every card of this kind has the same answer: a code. */
#define ALWAYS_BY(open, function, code_) \
    API function(handle device, const void *into) \
    { \
        struct device d; \
        int code = open(device, into, &d); \
        return code == OK ? (code_) : code; \
    }

#define ALWAYS(function, code_) ALWAYS_BY(gpu_open, function, code_)
#define SHARED_ALWAYS(function, code_) ALWAYS_BY(shared_open, function, code_)

/* The same where the caller's structure carries a version word. */
#define ALWAYS_VERSION_BY(open, function, word, code_) \
    API function(handle device, const uint32_t *into) \
    { \
        struct device d; \
        int code = open(device, into, &d); \
        return code != OK ? code : *into != (word) ? VERSION_MISMATCH : (code_); \
    }

#define ALWAYS_VERSION(function, word, code_) ALWAYS_VERSION_BY(gpu_open, function, word, code_)
#define SHARED_ALWAYS_VERSION(function, word, code_) ALWAYS_VERSION_BY(shared_open, function, word, code_)

#endif
