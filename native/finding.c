#include "finding.h"
#include "environment.h"
#include "sys.h"

static const char PAGES[] = "/var/lib/simgpu/gpus", FIRMWARE[] = "/lib/firmware/nvidia", FIRMWARE_PREFIX[] = "gsp_simgpu-";
enum { CI_PER_GI = 8, GI_PER_CARD = 15, FIRST_CAP = 3 };

static int exists(const char *path) { return sys(SYS_faccessat, AT_CWD, (long)path, 0, 0, 0, 0) == 0; }

static int starts_with(const char *text, const char *prefix)
{
    while (*prefix && *text == *prefix) text++, prefix++;
    return !*prefix;
}

static uintptr_t hexadecimal(const char **text)
{
    uintptr_t number = 0;
    for (;; (*text)++) {
        char c = **text;
        int digit = is_digit(c) ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
        if (digit < 0) return number;
        number = number << 4 | (uintptr_t)digit;
    }
}

/* The file that this code was loaded from, if a line of the kernel's list of them is of it. */
static const char *own_file(const char *line)
{
    uintptr_t here = (uintptr_t)&own_file, start = hexadecimal(&line);
    if (*line++ != '-') return 0;
    if (here < start || here >= hexadecimal(&line)) return 0;
    while (*line && *line != '/') line++;
    return *line ? line : 0;
}

/* The folder that holds `usr` with this code: of a driver that is not installed in the root of the file system. */
static int own_root(char *into, size_t size)
{
    char block[1024], line[LONGEST_PATH];
    size_t length = 0;
    int file = sys_open("/proc/self/maps");
    if (file < 0) return 0;
    const char *found = 0;
    for (long n; !found && (n = sys_read(file, block, sizeof block)) > 0;)
        for (long i = 0; i < n && !found; i++) {
            if (block[i] != '\n') {
                if (length + 1 < sizeof line) line[length++] = block[i];
                continue;
            }
            line[length] = 0;
            length = 0;
            found = own_file(line);
        }
    sys_close(file);
    const char *end = 0;
    for (const char *c = found; c && *c; c++)
        if (starts_with(c, "/usr/")) end = c;
    if (!end || (size_t)(end - found) >= size) return 0;
    for (const char *c = found; c < end; c++) *into++ = *c;
    *into = 0;
    return end > found;
}

static int is_ours(const char *name) { return starts_with(name, FIRMWARE_PREFIX); }

/* Whether there is an entry of a folder that is wanted; its name. */
static int find_entry(const char *folder, int (*wanted)(const char *folder, const char *name), char *into, size_t size)
{
    char entries[2048] __attribute__((aligned(8)));
    int file = sys_open(folder), found = 0;
    if (file < 0) return 0;
    for (long n; !found && (n = sys_list(file, entries, sizeof entries)) > 0;)
        for (long at = 0; at < n && !found;) {
            struct entry *entry = (struct entry *)(entries + at);
            at += entry->length;
            found = entry->name[0] != '.' && wanted(folder, entry->name) && text_copy(into, entry->name, size);
        }
    sys_close(file);
    return found;
}

static int is_page(const char *folder, const char *name)
{
    (void)folder;
    return is_ours(name);
}

static int has_pages(const char *folder, const char *name)
{
    char path[LONGEST_PATH], page[256];
    size_t end = text_add(path, 0, folder, sizeof path);
    end = text_add(path, end, "/", sizeof path);
    text_add(path, end, name, sizeof path);
    return find_entry(path, is_page, page, sizeof page);
}

void pages_find(struct place *into)
{
    char version[256];
    const char *given = environment("SIMGPU_PAGES");
    into->is_firmware = 0;
    if (given && *given) {
        text_copy(into->folder, given, sizeof into->folder);
        return;
    }
    if (own_root(into->folder, sizeof into->folder)) {
        text_add(into->folder, text_length(into->folder), PAGES, sizeof into->folder);
        if (exists(into->folder)) return;
    }
    text_copy(into->folder, PAGES, sizeof into->folder);
    if (exists(PAGES) || !find_entry(FIRMWARE, has_pages, version, sizeof version)) return;
    size_t end = text_add(into->folder, 0, FIRMWARE, sizeof into->folder);
    end = text_add(into->folder, end, "/", sizeof into->folder);
    text_add(into->folder, end, version, sizeof into->folder);
    into->is_firmware = 1;
}

int page_path(const struct place *place, const char *entry, char *into, size_t size)
{
    if (entry[0] == '.' || (place->is_firmware && !is_ours(entry))) return 0;
    size_t end = text_add(into, 0, place->folder, size);
    end = text_add(into, end, "/", size);
    end = text_add(into, end, entry, size);
    if (!place->is_firmware) text_add(into, end, "/page", size);
    return 1;
}

static int has_numbered(const char *name, unsigned number)
{
    char path[64];
    text_add_number(path, text_add(path, 0, name, sizeof path), number, sizeof path);
    return exists(path);
}

int has_device_file(const struct page *page) { return has_numbered("/dev/nvidia", page->minor_number); }

/* Minor numbers of instances go by card, GPU instance and compute instance, as the driver lists them in mig-minors. */
static int has_instance_files(const struct page *page, const struct instance *instance, int is_bare)
{
    if (instance->gpu_instance >= GI_PER_CARD || instance->compute_instance >= CI_PER_GI) return 0;
    unsigned number = FIRST_CAP + (page->minor_number * GI_PER_CARD + instance->gpu_instance) * (1 + CI_PER_GI);
    const char name[] = "/dev/nvidia-caps/nvidia-cap";
    return has_numbered(name, number) && (is_bare || has_numbered(name, number + 1 + instance->compute_instance));
}

/* Processes say by place which instance they use; `places` are the new ones, -1 of those that are gone. */
static void keep_own_apps(struct page *page, const int places[PAGE_INSTANCES], unsigned instances)
{
    unsigned kept = 0;
    for (unsigned i = 0; i < page->app_count; i++) {
        struct app app = page->apps[i];
        if (app.instance >= 0) {
            if ((unsigned)app.instance >= instances || places[app.instance] < 0) continue;
            app.instance = places[app.instance];
        }
        page->apps[kept] = app;
        if (kept != i) page->app_names[kept] = page->app_names[i];
        kept++;
    }
    page->app_count = kept;
}

void keep_own_instances(struct page *page)
{
    unsigned all = gpu_instance_count(page), devices = page->instance_count, kept = 0;
    int places[PAGE_INSTANCES];
    for (unsigned i = 0; i < all; i++) {
        int is_bare = i >= devices;
        places[i] = -1;
        if (!has_instance_files(page, &page->instances[i], is_bare)) {
            if (is_bare) page->bare_count--;
            else page->instance_count--;
            continue;
        }
        if (kept != i) {
            page->instances[kept] = page->instances[i];
            page->portions[kept] = page->portions[i];
        }
        places[i] = (int)kept++;
    }
    keep_own_apps(page, places, all);
}
