/* Events: a set has the number of errors of each of its cards that were reported, and what the card was like then; a wait
 * polls for more. Errors are in a ring on the card's page; changes are what a look finds different from the last one. */
#include "library.h"

enum { SETS = 64, SUPPORTED = 0xff9f, LOOK_EVERY_NS = 10000000 };
enum { P_STATE = 0x4, CLOCK = 0x10, MIG_CONFIG = 0x100 };

struct shape { uint64_t instances; uint32_t p_state, clock; };
struct watch { uint64_t types, seen; struct shape shape; };
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

/* A number that differs for other instances of a card. */
static uint64_t instances_of(const struct page *page)
{
    uint64_t number = 14695981039346656037u + page->mig_mode;
    for (unsigned i = 0; i < gpu_instance_count(page); i++)
        for (const char *c = page->instances[i].uuid; *c; c++) number = (number ^ (unsigned char)*c) * 1099511628211u;
    return number + page->bare_count;
}

static struct shape shape_of(const struct page *page)
{
    return (struct shape){instances_of(page), page->pstate, page->sm_clock};
}

API nvmlDeviceRegisterEvents(handle device, uint64_t types, void *handle)
{
    struct device d;
    int code = gpu_open(device, handle, &d);
    if (code != OK) return code;
    if (types & ~(uint64_t)SUPPORTED) return NOT_SUPPORTED;
    lock_take(&lock);
    struct event_set *set = set_at(handle);
    struct watch *watch = set ? &set->watch[d.card] : 0;
    if (watch && !watch->types) *watch = (struct watch){0, d.page.event_count, shape_of(&d.page)};
    if (watch) watch->types |= types;
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

/* The next error of a card that is watched for; those that are no longer on the page are skipped. */
static int next_error(struct watch *watch, const struct page *page, struct event *into)
{
    uint64_t last = page->event_count;
    if (last < watch->seen) watch->seen = last; /* a new page */
    if (last - watch->seen > PAGE_EVENTS) watch->seen = last - PAGE_EVENTS;
    while (watch->seen < last) {
        unsigned place = watch->seen++ % PAGE_EVENTS;
        const struct error *error = &page->events[place];
        if (!(error->type & watch->types)) continue;
        into->first.type = error->type;
        into->first.data = error->data;
        into->gpu_instance = page->event_origins[place].gpu_instance - 1; /* NO_INSTANCE of 0, also of older pages */
        into->compute_instance = page->event_origins[place].compute_instance - 1;
        return 1;
    }
    return 0;
}

/* One thing that has changed about a card since the last look, if it is watched for. */
static int next_change(struct watch *watch, const struct page *page, struct event_v1 *into)
{
    struct shape now = shape_of(page), *before = &watch->shape;
    uint64_t changed = 0;
    if (now.instances != before->instances) before->instances = now.instances, changed = MIG_CONFIG;
    else if (now.p_state != before->p_state) before->p_state = now.p_state, changed = P_STATE;
    else if (now.clock != before->clock) before->clock = now.clock, changed = CLOCK;
    else return 0;
    if (!(changed & watch->types)) return next_change(watch, page, into); /* at most twice */
    into->type = changed;
    into->data = 0;
    return 1;
}

/* Whether there is news of a card; one that is lost has its last errors first. */
static int has_news(const void *handle, unsigned card, const struct page *page, int code, struct event *into)
{
    lock_take(&lock);
    struct watch *watch = watch_at(handle, card);
    into->gpu_instance = into->compute_instance = NO_INSTANCE;
    int news = watch && (next_error(watch, page, into) || (code == OK && next_change(watch, page, &into->first)));
    lock_give(&lock);
    into->first.device = device_handle(card);
    return news;
}

static int look(const void *handle, struct event *into)
{
    struct page page;
    int lost = OK;
    for (unsigned card = 0; card < card_count(); card++) {
        if (!is_watched(handle, card)) continue;
        page.magic = page.major = 0;
        int code = card_page(card, &page);
        int readable = page.magic == PAGE_MAGIC && page.major == PAGE_MAJOR;
        if (readable && has_news(handle, card, &page, code, into)) return OK;
        if (code != OK) lost = code;
    }
    int code = library_ready();
    return code != OK ? code : lost != OK ? lost : TIMEOUT;
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
