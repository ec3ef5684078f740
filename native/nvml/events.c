/* Events: a set has the number of errors of each of its cards that were reported; a wait polls for more. */
#include "library.h"

enum { SETS = 64, SUPPORTED = 0xff9f, XID = 8, LOOK_EVERY_NS = 10000000 };

struct watch { uint64_t types, seen; };
struct event_set { int allocated; struct watch watch[MAX_CARDS]; };

static struct event_set sets[SETS];
static struct lock lock;

NUMBER(nvmlDeviceGetSupportedEventTypes, uint64_t, SUPPORTED)

/* The set behind a handle, or 0; the lock is held. */
static struct event_set *set_at(const void *handle)
{
    uintptr_t offset = (uintptr_t)handle - (uintptr_t)sets;
    if (offset >= sizeof sets || offset % sizeof *sets) return 0;
    struct event_set *set = &sets[offset / sizeof *sets];
    return set->allocated ? set : 0;
}

API nvmlEventSetCreate(void **into)
{
    int code = library_ready();
    if (code != OK) return code;
    if (!into) return INVALID_ARGUMENT;
    code = INSUFFICIENT_MEMORY;
    lock_take(&lock);
    for (unsigned i = 0; i < SETS && code != OK; i++)
        if (!sets[i].allocated) {
            clear(&sets[i], sizeof sets[i]);
            sets[i].allocated = 1;
            *into = &sets[i];
            code = OK;
        }
    lock_give(&lock);
    return code;
}

API nvmlEventSetFree(void *handle)
{
    int code = library_ready();
    if (code != OK) return code;
    lock_take(&lock);
    struct event_set *set = set_at(handle);
    if (set) set->allocated = 0;
    lock_give(&lock);
    return set ? OK : INVALID_ARGUMENT;
}

API nvmlDeviceRegisterEvents(handle device, uint64_t types, void *handle)
{
    struct device d;
    int code = gpu_open(device, handle, &d);
    if (code != OK) return code;
    if (types & ~(uint64_t)SUPPORTED) return NOT_SUPPORTED;
    lock_take(&lock);
    struct event_set *set = set_at(handle);
    if (set) set->watch[d.card] = (struct watch){set->watch[d.card].types | types, d.page.xids};
    lock_give(&lock);
    return set ? OK : INVALID_ARGUMENT;
}

/* The watch of a card in a set that may be gone by now; the lock is held. */
static struct watch *watch_at(const void *handle, unsigned card)
{
    struct event_set *set = set_at(handle);
    return set && set->watch[card].types ? &set->watch[card] : 0;
}

static int is_watched(const void *handle, unsigned card)
{
    lock_take(&lock);
    int watched = watch_at(handle, card) != 0;
    lock_give(&lock);
    return watched;
}

/* Whether the card has errors that were not reported yet; of several at once, the page has only the last. */
static int has_news(const void *handle, unsigned card, uint64_t xids)
{
    lock_take(&lock);
    struct watch *watch = watch_at(handle, card);
    int news = watch && watch->types & XID && xids > watch->seen;
    if (watch) watch->seen = xids;
    lock_give(&lock);
    return news;
}

static int look(const void *handle, struct event *into)
{
    struct page page;
    for (unsigned card = 0; card < card_count(); card++) {
        if (!is_watched(handle, card)) continue;
        int code = card_page(card, &page);
        if (code != OK) return code;
        if (!has_news(handle, card, page.xids)) continue;
        *into = (struct event){{device_handle(card), XID, page.xid}, NO_INSTANCE, NO_INSTANCE};
        return OK;
    }
    int code = library_ready();
    return code == OK ? TIMEOUT : code;
}

static int wait_for(const void *handle, struct event *into, unsigned milliseconds)
{
    uint64_t end = sys_nanoseconds(1) + milliseconds * 1000000ull;
    for (;;) {
        int code = look(handle, into);
        if (code != TIMEOUT) return code;
        uint64_t now = sys_nanoseconds(1);
        if (now >= end) return TIMEOUT;
        sys_sleep(end - now < LOOK_EVERY_NS ? end - now : LOOK_EVERY_NS);
    }
}

static int check_set(const void *handle, const void *into)
{
    int code = library_ready();
    if (code != OK) return code;
    lock_take(&lock);
    code = into && set_at(handle) ? OK : INVALID_ARGUMENT;
    lock_give(&lock);
    return code;
}

API nvmlEventSetWait(void *set, struct event_v1 *into, unsigned milliseconds)
{
    struct event event;
    int code = check_set(set, into);
    if (code == OK) code = wait_for(set, &event, milliseconds);
    if (code == OK) *into = event.first;
    return code;
}

API nvmlEventSetWait_v2(void *set, struct event *into, unsigned milliseconds)
{
    int code = check_set(set, into);
    return code == OK ? wait_for(set, into, milliseconds) : code;
}
