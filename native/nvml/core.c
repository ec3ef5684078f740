/* Starting, stopping, and what codes mean. */
#include "library.h"

/* Any number of readers, or one that starts or stops: those who wait for it hold up new readers. */
static int readers;
static int waiting;
static int owner;
static unsigned users;
static struct cards cards;

/* If a number is as expected, make it another; else learn what it is. */
static int swap(int *number, int *expected, int wanted)
{
    return __atomic_compare_exchange_n(number, expected, wanted, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

/* A fork takes along what other threads hold, but not the threads that would let go of it. */
static void forget_parent(void)
{
    int self = sys_pid(), before = __atomic_load_n(&owner, __ATOMIC_RELAXED);
    if (before != self && swap(&owner, &before, self) && before) readers = waiting = 0;
}

static void reading_begins(void)
{
    forget_parent();
    for (;;) {
        int now = __atomic_load_n(&readers, __ATOMIC_RELAXED);
        if (now >= 0 && !__atomic_load_n(&waiting, __ATOMIC_RELAXED) && swap(&readers, &now, now + 1)) return;
        sys_yield();
    }
}

static void reading_ends(void) { __atomic_fetch_sub(&readers, 1, __ATOMIC_RELEASE); }

static void changing_begins(void)
{
    forget_parent();
    __atomic_fetch_add(&waiting, 1, __ATOMIC_RELAXED);
    for (int none = 0; !swap(&readers, &none, -1); none = 0) sys_yield();
    __atomic_fetch_sub(&waiting, 1, __ATOMIC_RELAXED);
}

static void changing_ends(void) { __atomic_store_n(&readers, 0, __ATOMIC_RELEASE); }

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

/* What the functions that nobody wrote say. */
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

/* Private tables of the driver, for its own programs: there are none here. */
API nvmlInternalGetExportTable(const void **table, const void *id)
{
    if (!table || !id) return INVALID_ARGUMENT;
    *table = 0;
    return NOT_FOUND;
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
