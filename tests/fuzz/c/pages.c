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

static int page_file = -1;
static char second_path[128]; /* of a page that is there for some inputs */
static char socket_path[100];
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

void pages_prepare(void)
{
    const char *scratch = getenv("SIMGPU_FUZZ_SCRATCH");
    char folder[64], path[128];
    if (page_file >= 0) return;
    snprintf(folder, sizeof folder, "%s/XXXXXX", scratch ? scratch : "/tmp");
    if (!mkdtemp(folder)) fail(folder);
    snprintf(path, sizeof path, "%s/gpus", folder);
    mkdir(path, 0700);
    setenv("SIMGPU_PAGES", path, 1);
    snprintf(path, sizeof path, "%s/gpus/0", folder);
    mkdir(path, 0700);
    snprintf(path, sizeof path, "%s/gpus/0/page", folder);
    if ((page_file = open(path, O_RDWR | O_CREAT, 0600)) < 0) fail(path);
    snprintf(second_path, sizeof second_path, "%s/gpus/1", folder);
    mkdir(second_path, 0700);
    snprintf(second_path, sizeof second_path, "%s/gpus/1/page", folder);
    snprintf(socket_path, sizeof socket_path, "%s/socket", folder);
    setenv("SIMGPU_SOCKET", socket_path, 1);
    read_valid();
    start_owner();
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
    page->sequence = 0;
    page->written_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    page->stale_ns = good->stale_ns;
    memcpy(page->boot, good->boot, sizeof page->boot);
}

/* The second half of an ordinary card's page behind the first half of another: the same card again, or a second one. */
static void put_second(const unsigned char *first)
{
    static unsigned char made[sizeof(struct page)];
    if (!first) {
        unlink(second_path);
        return;
    }
    int file = open(second_path, O_RDWR | O_CREAT, 0600);
    if (file < 0) fail(second_path);
    memcpy(made, valid, sizeof made);
    memcpy(made, first, sizeof made / 2);
    put(file, made, sizeof made);
    close(file);
}

void page_put(const uint8_t *data, size_t size)
{
    static union { struct page page; unsigned char bytes[sizeof(struct page)]; } made;
    int whole = !(size && data[0] & 1);
    size_t given = size ? size - 1 : 0;
    if (given > sizeof made.bytes) given = sizeof made.bytes;
    memcpy(made.bytes, valid, sizeof valid);
    memcpy(made.bytes, data + (size ? 1 : 0), given);
    if (whole) make_current(&made.page);
    made.page.sequence &= ~(uint64_t)1; /* a reader waits for the writer of a torn page, each time */
    put(page_file, made.bytes, whole ? sizeof made.bytes : given);
    put_second(size && data[0] & 2 ? made.bytes : 0);
}

void page_put_valid(void)
{
    static const uint8_t nothing[1] = {0};
    page_put(nothing, 1);
}

void page_change(const uint8_t *data, size_t size)
{
    static union { struct page page; unsigned char bytes[sizeof(struct page)]; } made;
    memcpy(made.bytes, valid, sizeof valid);
    memcpy(made.bytes, data, size < sizeof made.bytes ? size : sizeof made.bytes);
    make_current(&made.page);
    put(page_file, made.bytes, sizeof made.bytes);
}

void owner_answers(const uint8_t *data, size_t size)
{
    pthread_mutex_lock(&lock);
    reply_size = size < sizeof reply ? size : sizeof reply;
    memcpy(reply, data, reply_size);
    pthread_mutex_unlock(&lock);
}
