/* Starting, stopping, and what codes mean. */
#include "library.h"

/* Any number of readers, or one that starts or stops: those who wait for it hold up new readers.
 *
 * All of it is one word, with the process in its upper half: a fork takes along what other threads hold, but not the
 * threads that would let go of it, so a word of another process counts as free. */
static uint64_t gate;
static unsigned users;
static struct cards cards;

enum { ONE_READER = 1, CHANGING = 0xFFFF, ONE_WAITING = 0x10000 };

/* If a number is as expected, make it another; else learn what it is. */
static int swap(int *number, int *expected, int wanted)
{
    return __atomic_compare_exchange_n(number, expected, wanted, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

/* The gate as this process has it: who reads, and who waits to change something. */
static uint32_t look(uint64_t *seen)
{
    *seen = __atomic_load_n(&gate, __ATOMIC_RELAXED);
    return (int)(*seen >> 32) == sys_pid() ? (uint32_t)*seen : 0;
}

static int turn(uint64_t seen, uint32_t wanted)
{
    uint64_t now = (uint64_t)(uint32_t)sys_pid() << 32 | wanted;
    return __atomic_compare_exchange_n(&gate, &seen, now, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

static void reading_begins(void)
{
    for (uint64_t seen;;) {
        uint32_t now = look(&seen);
        if (now < CHANGING - 1 && turn(seen, now + ONE_READER)) return;
        if (now >= CHANGING - 1) sys_yield();
    }
}

static void reading_ends(void) { __atomic_fetch_sub(&gate, ONE_READER, __ATOMIC_RELEASE); }

static void changing_begins(void)
{
    uint64_t seen;
    for (uint32_t now = look(&seen); !turn(seen, now + ONE_WAITING);) now = look(&seen);
    for (;;) {
        uint32_t now = look(&seen);
        if (!(now & CHANGING) && turn(seen, now - ONE_WAITING + CHANGING)) return;
        if (now & CHANGING) sys_yield();
    }
}

static void changing_ends(void) { __atomic_fetch_sub(&gate, CHANGING, __ATOMIC_RELEASE); }

void lock_take(struct lock *lock)
{
    int self = sys_pid();
    for (int held = 0; !swap(&lock->holder, &held, self);) {
        if (held != self) continue; /* free by now, or the parent's: take it from that */
        held = 0;
        sys_yield();
    }
}

void lock_give(struct lock *lock) { __atomic_store_n(&lock->holder, 0, __ATOMIC_RELEASE); }

int library_start(void)
{
    changing_begins();
    int code = users ? OK : cards_open(&cards);
    if (code == OK) users++;
    changing_ends();
    return code;
}

int library_stop(void)
{
    changing_begins();
    int code = users ? OK : UNINITIALIZED;
    if (users && --users == 0) cards_close(&cards);
    changing_ends();
    return code;
}

API nvmlInit(void) { return library_start(); }
API nvmlInit_v2(void) { return library_start(); }
API nvmlInitWithFlags(unsigned flags) { (void)flags; return library_start(); }
API nvmlShutdown(void) { return library_stop(); }

int library_ready(void)
{
    reading_begins();
    int code = users ? OK : UNINITIALIZED;
    reading_ends();
    return code;
}

unsigned card_count(void)
{
    reading_begins();
    unsigned count = cards.count;
    reading_ends();
    return count;
}

int card_page(unsigned card, struct page *into)
{
    reading_begins();
    int code = !users ? UNINITIALIZED : card >= cards.count ? INVALID_ARGUMENT : card_read(&cards.card[card], into);
    reading_ends();
    return code;
}

/* The answer of all functions that are not implemented. */
int nvml_unsupported(void);
int nvml_unsupported(void)
{
    int code = library_ready();
    return code == OK ? NOT_SUPPORTED : code;
}

static const char *const MEANINGS[] = {
    "Success", "Uninitialized", "Invalid Argument", "Not Supported", "Insufficient Permissions",
    "Already Initialized", "Not Found", "Insufficient Size", "Insufficient External Power", "Driver Not Loaded",
    "Timeout", "Interrupt Request Issue", "NVML Shared Library Not Found", "Function Not Found", "Corrupted infoROM",
    "GPU is lost", "GPU requires reset", "GPU access blocked by the operating system",
    "Driver/library version mismatch", "In use by another client", "Insufficient Memory", "No data",
    "vGPU ECC not supported", "Insufficient Resources", "Invalid Frequency", "Argument version mismatch",
    "Requested functionality has been deprecated", "System is not in ready state", "No supported GPUs were found",
    "Resource not in correct state to perform requested operation", "Reset type is not supported for given device",
};

EXPORTED const char *nvmlErrorString(unsigned code);
EXPORTED const char *nvmlErrorString(unsigned code)
{
    return code < sizeof MEANINGS / sizeof *MEANINGS ? MEANINGS[code] : "Unknown Error";
}

int answer_text(char *into, unsigned size, const char *text)
{
    if (!into) return INVALID_ARGUMENT;
    if (text_length(text) >= size) return INSUFFICIENT_SIZE;
    text_copy(into, text, size);
    return OK;
}

int answer_count(unsigned *count, const void *into, unsigned there)
{
    if (!count) return INVALID_ARGUMENT;
    unsigned room = *count;
    *count = there;
    if (room < there) return INSUFFICIENT_SIZE;
    return there && !into ? INVALID_ARGUMENT : OK;
}

void clear(void *at, size_t size)
{
    for (size_t i = 0; i < size; i++) ((unsigned char *)at)[i] = 0;
}
