#include "finding.h"
#include "environment.h"
#include "slices.h"
#include "sys.h"

static int map_page(const char *path, struct mapped *mapped)
{
    int file = sys_open(path);
    if (file < 0) return file == -13 ? READ_NO_PERMISSION : READ_LOST;
    long size = sys_size(file);
    void *at = size >= 64 ? sys_map(file, (size_t)size) : (void *)-1;
    sys_close(file);
    if (sys_failed(at)) return READ_LOST;
    mapped->page = at;
    mapped->size = (size_t)size;
    return READ_OK;
}

static const struct page *first_page(const struct cards *cards, unsigned card) { return cards->card[card].pages[0].page; }

static int is_same_card(const struct page *a, const struct page *b)
{
    if (a->index != b->index || !a->uuid[0]) return 0;
    for (unsigned i = 0; i < sizeof a->uuid; i++)
        if (a->uuid[i] != b->uuid[i]) return 0;
    return 1;
}

/* Pages of one card become one; they are next to each other. */
static void join_pages(struct cards *cards)
{
    unsigned kept = 0;
    for (unsigned i = 0; i < cards->count; i++) {
        struct card *last = kept ? &cards->card[kept - 1] : 0;
        if (!last || last->count == PAGE_INSTANCES || !is_same_card(last->pages[0].page, first_page(cards, i))) cards->card[kept++] = cards->card[i];
        else last->pages[last->count++] = cards->card[i].pages[0];
    }
    cards->count = kept;
}

static void sort_by_index(struct cards *cards)
{
    for (unsigned i = 1; i < cards->count; i++)
        for (unsigned j = i; j > 0 && first_page(cards, j)->index < first_page(cards, j - 1)->index; j--) {
            struct card other = cards->card[j];
            cards->card[j] = cards->card[j - 1];
            cards->card[j - 1] = other;
        }
}

int cards_open(struct cards *cards)
{
    char path[LONGEST_PATH], entries[4096] __attribute__((aligned(8)));
    struct place place;
    pages_find(&place);
    cards->count = 0;
    int file = sys_open(place.folder);
    if (file < 0) return file == -13 ? READ_NO_PERMISSION : READ_NOT_LOADED;
    int worst = READ_OK;
    for (long n; (n = sys_list(file, entries, sizeof entries)) > 0;)
        for (long at = 0; at < n;) {
            struct entry *entry = (struct entry *)(entries + at);
            at += entry->length;
            if (cards->count == MAX_CARDS || !page_path(&place, entry->name, path, sizeof path)) continue;
            struct card *card = &cards->card[cards->count];
            card->count = 1;
            card->by_device_files = place.is_firmware;
            int result = map_page(path, &card->pages[0]);
            if (result == READ_OK && card->pages[0].page->magic == PAGE_MAGIC && card->pages[0].page->major != PAGE_MAJOR)
                worst = READ_OTHER_VERSION;
            if (result == READ_OK && place.is_firmware && !has_device_file(card->pages[0].page))
                sys_unmap((void *)card->pages[0].page, card->pages[0].size);
            else if (result == READ_OK) cards->count++;
            else if (result == READ_NO_PERMISSION && worst == READ_OK) worst = result;
        }
    sys_close(file);
    if (worst == READ_OK && cards->count == 0) worst = READ_NOT_LOADED;
    if (worst != READ_OK) cards_close(cards);
    else {
        sort_by_index(cards);
        join_pages(cards);
    }
    return worst;
}

void cards_close(struct cards *cards)
{
    for (unsigned i = 0; i < cards->count; i++)
        for (unsigned j = 0; j < cards->card[i].count; j++) sys_unmap((void *)cards->card[i].pages[j].page, cards->card[i].pages[j].size);
    cards->count = 0;
}

static void copy_bytes(void *to, const volatile void *from, size_t size)
{
    uint64_t *a = to;
    const volatile uint64_t *b = from;
    for (size_t i = 0; i < size / 8; i++) a[i] = b[i];
}

/* A page is only as good as who wrote it: texts end, and nothing is counted beyond its table. */
static void bound(struct page *page)
{
#define END(text) page->text[sizeof page->text - 1] = 0;
    PAGE_TEXTS(END)
    for (unsigned i = 0; i < PAGE_PROFILES; i++) {
        END(profiles[i].name)
        if (page->profiles[i].slices > MAX_SLICES) page->profiles[i].slices = MAX_SLICES;
    }
    for (unsigned i = 0; i < PAGE_INSTANCES; i++) END(instances[i].uuid)
    for (unsigned i = 0; i < PAGE_APPS; i++) END(app_names[i].text)
#undef END
    if (page->instance_count > PAGE_INSTANCES) page->instance_count = PAGE_INSTANCES;
    if (page->bare_count > PAGE_INSTANCES - page->instance_count) page->bare_count = PAGE_INSTANCES - page->instance_count;
    if (page->app_count > PAGE_APPS) page->app_count = PAGE_APPS;
}

static long read_file(const char *path, char *into, size_t size)
{
    int file = sys_open(path);
    if (file < 0) return -1;
    long n = sys_read(file, into, size - 1);
    sys_close(file);
    into[n > 0 ? n : 0] = 0;
    return n;
}

/* Whether a page is of this start of the machine: each counts time anew. Where either is not known, it may be. */
static int is_of_this_boot(const struct page *page)
{
    static char this_boot[sizeof page->boot];
    static int known;
    if (!page->boot[0]) return 1;
    if (!__atomic_load_n(&known, __ATOMIC_ACQUIRE)) {
        char text[sizeof page->boot];
        long n = read_file("/proc/sys/kernel/random/boot_id", text, sizeof text);
        if (n > 0 && text[n - 1] == '\n') text[n - 1] = 0;
        if (n > 0) text_copy(this_boot, text, sizeof this_boot); /* threads that come here at once write the same */
        __atomic_store_n(&known, 1, __ATOMIC_RELEASE);
    }
    return !this_boot[0] || text_equal(this_boot, page->boot);
}

/* Whether its last write is too long ago, or before the last boot of the machine. */
static int is_stale(const struct page *page)
{
    uint64_t now = sys_nanoseconds(1), written = page->written_ns;
    return !is_of_this_boot(page) || (now > written ? now - written : written - now) > page->stale_ns;
}

static int read_page(const struct mapped *mapped, struct page *into)
{
    const struct page *page = mapped->page;
    for (int attempt = 0; attempt < 200; attempt++) {
        uint64_t before = __atomic_load_n(&page->sequence, __ATOMIC_ACQUIRE);
        if (!(before & 1)) {
            size_t known = __atomic_load_n(&page->size, __ATOMIC_RELAXED);
            if (known > sizeof *into) known = sizeof *into;
            if (known > mapped->size) known = mapped->size;
            for (size_t i = known / 8; i < sizeof *into / 8; i++) ((uint64_t *)into)[i] = 0;
            copy_bytes(into, page, known);
            __atomic_thread_fence(__ATOMIC_ACQUIRE);
            if (__atomic_load_n(&page->sequence, __ATOMIC_RELAXED) == before) {
                if (into->magic != PAGE_MAGIC) return READ_LOST;
                if (into->major != PAGE_MAJOR) return READ_OTHER_VERSION;
                bound(into);
                return is_stale(into) ? READ_LOST : READ_OK;
            }
        }
        if (attempt < 20) sys_yield();
        else sys_sleep(1000000);
    }
    return READ_LOST; /* torn: its writer died while writing */
}

/* MIG devices are in the order of their GPU instances, and of the compute instances of each. */
static int comes_after(const struct instance *a, const struct instance *b)
{
    return a->gpu_instance != b->gpu_instance ? a->gpu_instance > b->gpu_instance : a->compute_instance > b->compute_instance;
}

static int has_instance(const struct page *page, const struct instance *wanted)
{
    for (unsigned i = 0; i < gpu_instance_count(page); i++)
        if (!comes_after(&page->instances[i], wanted) && !comes_after(wanted, &page->instances[i])) return 1;
    return 0;
}

/* Add the MIG devices of another page of the same card; instances without compute instances come last. */
static void add_instances(struct page *page, const struct page *other)
{
    for (unsigned i = 0; i < other->instance_count && gpu_instance_count(page) < PAGE_INSTANCES; i++) {
        unsigned at = page->instance_count;
        if (has_instance(page, &other->instances[i])) continue;
        while (at && comes_after(&page->instances[at - 1], &other->instances[i])) at--;
        for (unsigned j = gpu_instance_count(page); j > at; j--) {
            page->instances[j] = page->instances[j - 1];
            page->portions[j] = page->portions[j - 1];
        }
        page->instances[at] = other->instances[i];
        page->portions[at] = other->portions[i];
        page->instance_count++;
    }
}

int card_read(const struct card *card, struct page *into)
{
    int code = read_page(&card->pages[0], into);
    if (code == READ_OK && card->by_device_files) keep_own_instances(into);
    if (card->count == 1) return code;
    struct page other;
    for (unsigned i = 1; i < card->count; i++) {
        int found = read_page(&card->pages[i], &other);
        if (found != READ_OK) continue;
        if (code == READ_OK) add_instances(into, &other);
        else *into = other;
        code = READ_OK;
    }
    return code;
}

/* Processes. */

enum { MAX_PID = 1 << 22 }; /* that a kernel gives */

static void proc_path(char *path, int pid, const char *name, size_t size)
{
    size_t end = text_add(path, 0, "/proc/", size);
    end = text_add_number(path, end, (uint64_t)pid, size);
    text_add(path, end, name, size);
}

/* The parent of a process, or -1 for one that is gone or only waits to be buried. */
static int parent_of(int pid)
{
    char path[64], stat[512];
    proc_path(path, pid, "/stat", sizeof path);
    if (read_file(path, stat, sizeof stat) <= 0) return -1;
    const char *after = 0;
    for (const char *c = stat; *c; c++)
        if (*c == ')') after = c; /* a name may contain brackets; nothing after it does */
    if (!after || after[1] != ' ' || after[2] == 'Z' || after[2] == 'X') return -1;
    int parent = 0;
    for (const char *c = after + 4; is_digit(*c) && parent <= MAX_PID; c++) parent = parent * 10 + (*c - '0');
    return parent;
}

static unsigned all_processes(int *into, unsigned most)
{
    char entries[4096] __attribute__((aligned(8)));
    unsigned count = 0;
    int file = sys_open("/proc");
    if (file < 0) return 0;
    for (long n; (n = sys_list(file, entries, sizeof entries)) > 0;)
        for (long at = 0; at < n;) {
            struct entry *entry = (struct entry *)(entries + at);
            at += entry->length;
            int pid = 0;
            const char *c = entry->name;
            while (is_digit(*c) && pid <= MAX_PID) pid = pid * 10 + (*c++ - '0');
            if (*c || !pid || count == most) continue;
            int parent = parent_of(pid);
            if (parent >= 0 && pid != 2 && parent != 2) into[count++] = pid;
        }
    sys_close(file);
    return count;
}

static void sort_by_pid(int *all, unsigned count)
{
    for (unsigned i = 1; i < count; i++)
        for (unsigned j = i; j > 0 && all[j] < all[j - 1]; j--) {
            int other = all[j];
            all[j] = all[j - 1];
            all[j - 1] = other;
        }
}

int process_name(int pid, char *into, size_t size)
{
    char path[64];
    proc_path(path, pid, "/cmdline", sizeof path);
    long n = read_file(path, into, size);
    if (n < 0) return 0;
    if (n > 0 && into[0]) return 1;
    proc_path(path, pid, "/comm", sizeof path);
    n = read_file(path, into, size);
    if (n > 0 && into[n - 1] == '\n') into[n - 1] = 0;
    return n >= 0;
}

unsigned process_list(const struct page *page, struct process *into, unsigned most)
{
    int all[2048], self = sys_pid();
    if (!page->open || page->processes != PAGE_ALL_PROCESSES) return 0;
    unsigned count = all_processes(all, sizeof all / sizeof *all), kept = 0;
    for (unsigned i = 0; i < count; i++)
        if (all[i] != self) all[kept++] = all[i];
    if (kept > most) kept = most;
    sort_by_pid(all, kept);
    for (unsigned i = 0; i < kept; i++) {
        into[i].pid = all[i];
        if (!process_name(all[i], into[i].name, PROCESS_NAME)) text_copy(into[i].name, "[Not Found]", PROCESS_NAME);
    }
    return kept;
}

/* What the reader's processes have of a card's memory in use: all of it, or as much as its container may have. */
static uint64_t own_memory(uint64_t used)
{
    const char *given = environment("SIMGPU_MEMORY_MIB");
    uint64_t mib = 0;
    for (; given && is_digit(*given) && mib < 1u << 30; given++) mib = mib * 10 + (uint64_t)(*given - '0');
    return mib && mib << 20 < used ? mib << 20 : used;
}

static void share(struct process *process, uint64_t memory, unsigned usage, unsigned memory_usage, unsigned i, unsigned count)
{
    process->memory = memory / count + (i < memory % count);
    process->usage = usage / count + (i < usage % count);
    process->memory_usage = memory_usage / count + (i < memory_usage % count);
}

unsigned process_shares(const struct page *page, const struct process *all, unsigned count, struct process *into, unsigned most)
{
    unsigned parts = page->mig_mode ? page->instance_count : 1, kept = 0;
    for (unsigned part = 0; part < parts; part++) {
        const struct instance *instance = page->mig_mode ? &page->instances[part] : 0;
        if (instance && !instance->open) continue;
        for (unsigned i = 0; i < count && kept < most; i++, kept++) {
            struct process *process = &into[kept];
            if (process != &all[i]) *process = all[i];
            if (instance) share(process, own_memory(instance->memory_used), instance->usage, 0, i, count);
            else share(process, own_memory(page->memory_used), page->usage, page->memory_usage, i, count);
            process->gpu_instance = instance ? (int)instance->gpu_instance : -1;
            process->compute_instance = instance ? (int)instance->compute_instance : -1;
        }
    }
    return kept;
}

/* Those that the page lists, less those that are gone meanwhile or are not to be seen from here. */
static unsigned listed_processes(const struct page *page, struct process *into, unsigned most)
{
    unsigned count = 0;
    for (unsigned i = 0; page->open && i < page->app_count && i < PAGE_APPS && count < most; i++) {
        const struct app *app = &page->apps[i];
        struct process *process = &into[count];
        if (app->pid <= 0) continue;
        if (page->processes == PAGE_NAMED_PROCESSES) text_copy(process->name, page->app_names[i].text, PROCESS_NAME);
        else if (parent_of(app->pid) < 0 || !process_name(app->pid, process->name, PROCESS_NAME)) continue;
        const struct instance *instance = (unsigned)app->instance < PAGE_INSTANCES ? &page->instances[app->instance] : 0;
        process->pid = app->pid;
        process->memory = app->memory;
        process->usage = app->usage;
        process->memory_usage = app->memory_usage;
        process->gpu_instance = instance ? (int)instance->gpu_instance : -1;
        process->compute_instance = instance ? (int)instance->compute_instance : -1;
        count++;
    }
    return count;
}

/* The inode of the reader's process namespace; 0 where it is not known. */
static uint64_t own_pid_namespace(void)
{
    char text[64];
    long n = sys(SYS_readlinkat, AT_CWD, (long)"/proc/self/ns/pid", (long)text, sizeof text - 1, 0, 0);
    uint64_t number = 0;
    for (long i = 0; i < n; i++)
        if (is_digit(text[i])) number = number * 10 + (uint64_t)(text[i] - '0');
    return number;
}

int lists_processes(const struct page *page)
{
    if (page->processes != PAGE_ALL_PROCESSES) return page->processes != PAGE_NO_PROCESSES;
    return page->pid_namespace && page->pid_namespace == own_pid_namespace();
}

unsigned card_processes(const struct page *page, struct process *into, unsigned most)
{
    if (lists_processes(page)) return listed_processes(page, into, most);
    unsigned count = process_list(page, into, most);
    return process_shares(page, into, count, into, most); /* what is copied within the list lies before its copy */
}

/* Settings. */

struct address { uint16_t family; char path[108]; };

static size_t setting_text(char *into, size_t size, const struct page *page, const char *setting, int64_t first, int64_t second)
{
    size_t end = text_add(into, 0, "{\"Set\":{\"Device\":\"", size);
    end = text_add(into, end, page->uuid, size);
    end = text_add(into, end, "\",\"Setting\":\"", size);
    end = text_add(into, end, setting, size);
    end = text_add(into, end, "\",\"Values\":[", size);
    end = text_add_number(into, end, (uint64_t)first, size);
    end = text_add(into, end, ",", size);
    end = text_add_number(into, end, (uint64_t)second, size);
    return text_add(into, end, "]}}\n", size);
}

enum { INTERRUPTED = -4, NO_SIGNAL = 0x4000 };
static const uint64_t PATIENCE = 5000000000u;

/* A call that a signal of the program's interrupts is made again. */
static long again(long call, int file, long a, long b, long c)
{
    long result;
    do result = sys(call, file, a, b, c, 0, 0); while (result == INTERRUPTED);
    return result;
}

static int answered(int file)
{
    struct { int file; short events, revents; } wait = {file, 1, 0};
    uint64_t latest = sys_nanoseconds(1) + PATIENCE;
    for (uint64_t now; (now = sys_nanoseconds(1)) < latest;) {
        uint64_t left = latest - now;
        struct moment patience = {(int64_t)(left / 1000000000u), (int64_t)(left % 1000000000u)};
        long ready = sys(SYS_ppoll, (long)&wait, 1, (long)&patience, 0, 8, 0);
        if (ready != INTERRUPTED) return ready == 1;
    }
    return 0;
}

/* Where pages are read that were written for containers, as on their node, the socket is elsewhere. */
static const char *control_socket(const struct page *page)
{
    const char *given = environment("SIMGPU_SOCKET");
    return given && *given ? given : page->control;
}

int card_set(const struct page *page, const char *setting, int64_t first, int64_t second)
{
    if (!page->control[0]) return READ_NO_PERMISSION;
    struct address address = {1, {0}};
    if (!text_copy(address.path, control_socket(page), sizeof address.path)) return READ_NO_PERMISSION;
    int file = (int)sys(SYS_socket, 1, 1 | OPEN_CLOEXEC, 0, 0, 0, 0);
    if (file < 0) return READ_NO_PERMISSION;
    int answer = READ_NO_PERMISSION;
    char text[512], reply[16] = {0};
    if (again(SYS_connect, file, (long)&address, sizeof address, 0) == 0) {
        size_t size = setting_text(text, sizeof text, page, setting, first, second);
        if (again(SYS_sendto, file, (long)text, (long)size, NO_SIGNAL) == (long)size && answered(file)
            && again(SYS_read, file, (long)reply, sizeof reply - 1, 0) > 0 && is_digit(reply[0])) {
            answer = 0;
            for (const char *c = reply; is_digit(*c) && answer < 1000; c++) answer = answer * 10 + (*c - '0'); /* codes have 3 digits */
        }
    }
    sys_close(file);
    return answer;
}
