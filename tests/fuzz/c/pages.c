#include "pages.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "page.h"

/* Of the first byte of a page. */
enum { RAW = 1, SECOND = 2, TORN = 4, FIRMWARE = 8, PROCESSES = 16, MEMORY_BITS = 5 };
enum { PATH = 160, MAX_WAITS = 1 << 20, MAX_FACTS = 5000, DEVICES = 4, FIRST_CAP = 3, CAPS = 300 };
enum { STAT, CMDLINE, COMM, MAPS, FACTS };
static const char *const FACT_NAMES[] = {"stat", "cmdline", "comm", "maps"};
static const char *const PROCESS_IDS[] = {"1", "7", "4000000", "self"};
static const char *const MEMORY[] = {0, "", "0", "1", "2048", "99999999999999999999999", "-5", "12x"}; /* MiB */

static int page_file = -1;
static int fact_files[FACTS]; /* of all processes */
static char root[64], pages_path[PATH];
static char second_path[PATH], second_firmware[PATH]; /* of a page that is there for some inputs */
static char socket_path[100];
static unsigned waits;
static char reply[64];
static size_t reply_size;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned char valid[sizeof(struct page)];

static void fail(const char *what)
{
    perror(what);
    _exit(1);
}

static void *own(void *given)
{
    int listening = *(int *)given;
    for (;;) {
        char request[512];
        int client = accept(listening, 0, 0);
        if (client < 0) continue;
        if (read(client, request, sizeof request) > 0) {
            pthread_mutex_lock(&lock);
            if (write(client, reply, reply_size) < 0) reply_size = 0;
            pthread_mutex_unlock(&lock);
        }
        close(client);
    }
    return 0;
}

static void start_owner(void)
{
    static int listening;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    pthread_t thread;
    memcpy(address.sun_path, socket_path, sizeof socket_path);
    listening = socket(AF_UNIX, SOCK_STREAM, 0);
    if (bind(listening, (struct sockaddr *)&address, sizeof address) || listen(listening, 64)) fail(socket_path);
    if (pthread_create(&thread, 0, own, &listening)) fail("thread");
}

static void read_valid(void)
{
    const char *given = getenv("SIMGPU_FUZZ_PAGE");
    int file = given ? open(given, O_RDONLY) : -1;
    if (file < 0 || read(file, valid, sizeof valid) != (ssize_t)sizeof valid) fail("SIMGPU_FUZZ_PAGE");
    close(file);
}

/* Make a folder below the root with all those above it. */
static void make_folder(const char *name)
{
    char path[PATH];
    snprintf(path, sizeof path, "%s/%s", root, name);
    for (char *c = path + strlen(root) + 1; (c = strchr(c, '/')); *c++ = '/') {
        *c = 0;
        mkdir(path, 0700);
    }
    mkdir(path, 0700);
}

static int make_file(const char *name)
{
    char path[PATH];
    snprintf(path, sizeof path, "%s/%s", root, name);
    int file = open(path, O_RDWR | O_CREAT, 0600);
    if (file < 0) fail(path);
    return file;
}

/* Device files of some cards and of two of three of their instances. */
static void make_devices(void)
{
    char name[PATH];
    make_folder("dev/nvidia-caps");
    for (int number = 0; number < DEVICES; number++) {
        snprintf(name, sizeof name, "dev/nvidia%d", number);
        close(make_file(name));
    }
    for (int number = FIRST_CAP; number < CAPS; number++) {
        snprintf(name, sizeof name, "dev/nvidia-caps/nvidia-cap%d", number);
        if (number % 3) close(make_file(name));
    }
}

/* Processes that have the same files, and the namespace of the pages' own. */
static void make_processes(void)
{
    char from[PATH], to[PATH];
    make_folder("proc/self/ns");
    snprintf(to, sizeof to, "%s/proc/self/ns/pid", root);
    if (symlink("pid:[4026531836]", to)) fail(to);
    for (int fact = 0; fact < FACTS; fact++) {
        snprintf(from, sizeof from, "%s/%s", root, FACT_NAMES[fact]);
        fact_files[fact] = make_file(FACT_NAMES[fact]);
        for (size_t i = 0; i < sizeof PROCESS_IDS / sizeof *PROCESS_IDS; i++) {
            snprintf(to, sizeof to, "proc/%s", PROCESS_IDS[i]);
            make_folder(to);
            snprintf(to, sizeof to, "%s/proc/%s/%s", root, PROCESS_IDS[i], FACT_NAMES[fact]);
            if (link(from, to)) fail(to);
        }
    }
}

static void make_pages(void)
{
    char from[PATH], to[PATH];
    make_folder("gpus/0");
    make_folder("gpus/1");
    make_folder("lib/firmware/nvidia/570.00");
    page_file = make_file("gpus/0/page");
    snprintf(pages_path, sizeof pages_path, "%s/gpus", root);
    snprintf(from, sizeof from, "%s/gpus/0/page", root);
    snprintf(to, sizeof to, "%s/lib/firmware/nvidia/570.00/gsp_simgpu-0.bin", root);
    if (link(from, to)) fail(to);
    snprintf(second_path, sizeof second_path, "%s/gpus/1/page", root);
    snprintf(second_firmware, sizeof second_firmware, "%s/lib/firmware/nvidia/570.00/gsp_simgpu-1.bin", root);
}

void pages_prepare(void)
{
    const char *scratch = getenv("SIMGPU_FUZZ_SCRATCH");
    waits = 0;
    if (page_file >= 0) return;
    snprintf(root, sizeof root, "%s/XXXXXX", scratch ? scratch : "/tmp");
    if (!mkdtemp(root)) fail(root);
    make_pages();
    make_devices();
    make_processes();
    snprintf(socket_path, sizeof socket_path, "%s/socket", root);
    setenv("SIMGPU_SOCKET", socket_path, 1);
    read_valid();
    start_owner();
}

static int starts_with(const char *text, const char *prefix) { return !strncmp(text, prefix, strlen(prefix)); }

static int is_of_processes(const char *path)
{
    return !strcmp(path, "/proc") || starts_with(path, "/proc/self/")
        || (starts_with(path, "/proc/") && path[6] >= '0' && path[6] <= '9');
}

const char *system_path(const char *path)
{
    static __thread char found[PATH];
    if (!is_of_processes(path) && !starts_with(path, "/dev/nvidia") && !starts_with(path, "/lib/firmware/")
        && !starts_with(path, "/var/lib/simgpu/"))
        return path;
    if (snprintf(found, sizeof found, "%s%s", root, path) >= (int)sizeof found) return path;
    return found;
}

void system_wait(void)
{
    if (++waits > MAX_WAITS) {
        fprintf(stderr, "it waits without end\n");
        abort();
    }
}

static void put(int file, const void *data, size_t size)
{
    if (ftruncate(file, (off_t)size) || pwrite(file, data, size, 0) != (ssize_t)size) fail("page");
}

static void make_current(struct page *page)
{
    const struct page *good = (const struct page *)valid;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    page->magic = good->magic, page->major = good->major, page->minor = good->minor, page->size = good->size;
    page->written_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    page->stale_ns = good->stale_ns;
    memcpy(page->boot, good->boot, sizeof page->boot);
}

/* What the kernel says of each process: made of an input's bytes, or that of an ordinary one. */
static void put_processes(const uint8_t *data, size_t size)
{
    static const char STAT_HEAD[] = "1 (a) S ", MAPS_HEAD[] = "0-ffffffffffffffff r-xp 0 0:0 0 /x/usr/";
    static const char *const ORDINARY[] = {"1 (sleep) S 0 1 1", "sleep", "sleep\n", ""};
    char text[MAX_FACTS + sizeof MAPS_HEAD];
    if (size > MAX_FACTS) size = MAX_FACTS;
    for (int fact = 0; fact < FACTS; fact++) {
        const char *head = !size || data[0] & 1 ? "" : fact == STAT ? STAT_HEAD : fact == MAPS ? MAPS_HEAD : "";
        size_t length = strlen(head);
        memcpy(text, head, length);
        if (size) memcpy(text + length, data, size);
        text[length + size] = '\n';
        if (size) put(fact_files[fact], text, length + size + 1);
        else put(fact_files[fact], ORDINARY[fact], strlen(ORDINARY[fact]));
    }
}

static void set(const char *name, const char *value)
{
    if (value) setenv(name, value, 1);
    else unsetenv(name);
}

/* The second half of an ordinary card's page behind the first half of another: the same card again, or a second one. */
static void put_second(const unsigned char *first)
{
    static union { struct page page; unsigned char bytes[sizeof(struct page)]; } made;
    static int is_there;
    if (!first) {
        if (is_there) unlink(second_path), unlink(second_firmware);
        is_there = 0;
        return;
    }
    int file = open(second_path, O_RDWR | O_CREAT, 0600);
    if (file < 0) fail(second_path);
    if (!is_there && link(second_path, second_firmware)) fail(second_firmware);
    is_there = 1;
    memcpy(made.bytes, valid, sizeof valid);
    memcpy(made.bytes, first, sizeof valid / 2);
    made.page.sequence = 0;
    put(file, made.bytes, sizeof made.bytes);
    close(file);
}

void page_put(const uint8_t *data, size_t size)
{
    static union { struct page page; unsigned char bytes[sizeof(struct page)]; } made;
    unsigned how = size ? data[0] : 0;
    size_t given = size ? size - 1 : 0;
    if (given > sizeof made.bytes) given = sizeof made.bytes;
    memcpy(made.bytes, valid, sizeof valid);
    memcpy(made.bytes, data + (size ? 1 : 0), given);
    if (!(how & RAW)) make_current(&made.page);
    made.page.sequence = (made.page.sequence & ~(uint64_t)1) | (how & TORN ? 1 : 0);
    put(page_file, made.bytes, how & RAW ? given : sizeof made.bytes);
    put_second(how & SECOND ? made.bytes : 0);
    put_processes(data + (size ? 1 : 0), how & PROCESSES ? given : 0);
    set("SIMGPU_PAGES", how & FIRMWARE ? 0 : pages_path);
    set("SIMGPU_MEMORY_MIB", MEMORY[how >> MEMORY_BITS]);
}

void page_put_valid(void)
{
    static const uint8_t nothing[1] = {0};
    page_put(nothing, 1);
}

void page_change(const uint8_t *data, size_t size)
{
    static union { struct page page; unsigned char bytes[sizeof(struct page)]; } made;
    size_t given = size ? size - 1 : 0;
    memcpy(made.bytes, valid, sizeof valid);
    memcpy(made.bytes, data + (size ? 1 : 0), given < sizeof made.bytes ? given : sizeof made.bytes);
    make_current(&made.page);
    made.page.sequence = size && data[0] & TORN;
    put(page_file, made.bytes, sizeof made.bytes);
}

void owner_answers(const uint8_t *data, size_t size)
{
    pthread_mutex_lock(&lock);
    reply_size = size < sizeof reply ? size : sizeof reply;
    memcpy(reply, data, reply_size);
    pthread_mutex_unlock(&lock);
}
