/* Handles: addresses in tables that hold nothing. They are compared, never followed, and outlive a restart. */
#include "library.h"

/* Instances by their number on the card, and compute instances by theirs within: it stays while others come and go. */
enum { NUMBERS = 16, WITHIN = 8, PAIRS = NUMBERS * WITHIN };
static char devices[MAX_CARDS][1 + PAIRS];
static char gpu_instances[MAX_CARDS][NUMBERS];
static char compute_instances[MAX_CARDS][PAIRS];

typedef unsigned numbering(const struct instance *instance);
static unsigned number(const struct instance *instance) { return instance->gpu_instance % NUMBERS; }
static unsigned pair(const struct instance *instance) { return number(instance) * WITHIN + instance->compute_instance % WITHIN; }

handle device_handle(unsigned card) { return &devices[card][0]; }
handle mig_handle(unsigned card, const struct instance *instance) { return &devices[card][1 + pair(instance)]; }
handle gpu_instance_handle(unsigned card, const struct instance *instance) { return &gpu_instances[card][number(instance)]; }
handle compute_instance_handle(unsigned card, const struct instance *instance) { return &compute_instances[card][pair(instance)]; }

/* Where in a table a handle points, or more than the table has. */
static size_t place(handle handle, const void *table, size_t size)
{
    uintptr_t offset = (uintptr_t)handle - (uintptr_t)table;
    return offset < size ? offset : SIZE_MAX;
}

/* The instance of that number, among the first `many` of the page. */
static int open_part(struct device *device, size_t place, size_t wanted, numbering *numbers, unsigned (*many)(const struct page *page))
{
    if (place == SIZE_MAX) return library_ready() == OK ? INVALID_ARGUMENT : UNINITIALIZED;
    int code = card_page(device->card, &device->page);
    if (code != OK) return code;
    for (unsigned i = 0; i < many(&device->page); i++)
        if (numbers(&device->page.instances[i]) == wanted) {
            device->instance = &device->page.instances[i];
            return OK;
        }
    return INVALID_ARGUMENT;
}

static unsigned mig_devices(const struct page *page) { return page->instance_count; }

int device_open(handle handle, struct device *device)
{
    size_t at = place(handle, devices, sizeof devices), width = 1 + PAIRS;
    device->instance = 0;
    device->card = at == SIZE_MAX ? MAX_CARDS : (unsigned)(at / width);
    if (at == SIZE_MAX || at % width == 0) return card_page(device->card, &device->page);
    return open_part(device, at, at % width - 1, pair, mig_devices);
}

int any_open(handle handle, const void *into, struct device *device)
{
    int code = device_open(handle, device);
    return code != UNINITIALIZED && !into ? INVALID_ARGUMENT : code;
}

static int whole_open(handle handle, const void *into, struct device *device, enum code refusal)
{
    int code = any_open(handle, into, device);
    return code == OK && device->instance ? (int)refusal : code;
}

int gpu_open(handle handle, const void *into, struct device *device)
{
    return whole_open(handle, into, device, INVALID_ARGUMENT);
}

int shared_open(handle handle, const void *into, struct device *device)
{
    return whole_open(handle, into, device, NOT_SUPPORTED);
}


int gpu_instance_open(handle handle, const void *into, struct device *device)
{
    size_t at = place(handle, gpu_instances, sizeof gpu_instances);
    device->card = (unsigned)(at / NUMBERS);
    int code = open_part(device, at, at % NUMBERS, number, gpu_instance_count);
    return code == OK && !into ? INVALID_ARGUMENT : code;
}

int compute_instance_open(handle handle, const void *into, struct device *device)
{
    size_t at = place(handle, compute_instances, sizeof compute_instances);
    device->card = (unsigned)(at / PAIRS);
    int code = open_part(device, at, at % PAIRS, pair, mig_devices);
    return code == OK && !into ? INVALID_ARGUMENT : code;
}

static int count_cards(unsigned *into)
{
    int code = library_ready();
    if (code != OK) return code;
    if (!into) return INVALID_ARGUMENT;
    *into = card_count();
    return OK;
}

API nvmlDeviceGetCount(unsigned *into) { return count_cards(into); }
API nvmlDeviceGetCount_v2(unsigned *into) { return count_cards(into); }

static int by_index(unsigned index, handle *into)
{
    int code = library_ready();
    if (code != OK) return code;
    if (!into || index >= card_count()) return INVALID_ARGUMENT;
    *into = device_handle(index);
    return OK;
}

API nvmlDeviceGetHandleByIndex(unsigned index, handle *into) { return by_index(index, into); }
API nvmlDeviceGetHandleByIndex_v2(unsigned index, handle *into) { return by_index(index, into); }

/* The first card, or part of one, that matches; lost cards are skipped. */
typedef handle (*matching)(const struct page *page, unsigned card, const void *wanted);

static int find(matching matches, const void *wanted, handle *into)
{
    struct page page;
    int code = library_ready();
    if (code != OK) return code;
    if (!wanted || !into) return INVALID_ARGUMENT;
    for (unsigned card = 0; card < card_count(); card++) {
        handle found = card_page(card, &page) == OK ? matches(&page, card, wanted) : 0;
        if (found) {
            *into = found;
            return OK;
        }
    }
    return NOT_FOUND;
}

static handle has_uuid(const struct page *page, unsigned card, const void *wanted)
{
    if (text_equal(page->uuid, wanted)) return device_handle(card);
    for (unsigned i = 0; i < page->instance_count; i++)
        if (text_equal(page->instances[i].uuid, wanted)) return mig_handle(card, &page->instances[i]);
    return 0;
}

static handle has_serial(const struct page *page, unsigned card, const void *wanted)
{
    return text_equal(page->serial, wanted) ? device_handle(card) : 0;
}

static handle has_address(const struct page *page, unsigned card, const void *wanted)
{
    const unsigned *at = wanted;
    return page->pci_domain == at[0] && page->pci_bus == at[1] && page->pci_device == at[2] ? device_handle(card) : 0;
}

API nvmlDeviceGetHandleByUUID(const char *uuid, handle *into) { return find(has_uuid, uuid, into); }
API nvmlDeviceGetHandleBySerial(const char *serial, handle *into) { return find(has_serial, serial, into); }

static int hexadecimal(char c)
{
    if (is_digit(c)) return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* A hexadecimal number of at most eight digits; the text after it, or 0. */
static const char *take_number(const char *text, unsigned *into)
{
    unsigned digits = 0;
    for (*into = 0; hexadecimal(*text) >= 0; text++, digits++) *into = *into << 4 | (unsigned)hexadecimal(*text);
    return digits && digits <= 8 ? text : 0;
}

int parse_address(const char *text, unsigned address[3])
{
    unsigned numbers[3], count = 0, function;
    while (count < 3) {
        text = take_number(text, &numbers[count++]);
        if (!text || *text != ':') break;
        text++;
    }
    if (text && *text == '.') text = take_number(text + 1, &function);
    if (!text || *text || count < 2) return 0;
    address[0] = count == 3 ? numbers[0] : 0;
    address[1] = numbers[count - 2];
    address[2] = numbers[count - 1];
    return 1;
}

static int by_address(const char *text, handle *into)
{
    unsigned address[3];
    int code = library_ready();
    if (code != OK) return code;
    if (!text || !parse_address(text, address)) return INVALID_ARGUMENT;
    return find(has_address, address, into);
}

API nvmlDeviceGetHandleByPciBusId(const char *text, handle *into) { return by_address(text, into); }
API nvmlDeviceGetHandleByPciBusId_v2(const char *text, handle *into) { return by_address(text, into); }

enum { UUID_AS_TEXT = 1, UUID_AS_BYTES = 2, UUID_BYTES = 16 };

static void spell_uuid(const unsigned char *bytes, char *into)
{
    static const char DIGITS[] = "0123456789abcdef";
    size_t at = text_add(into, 0, "GPU-", 41);
    for (unsigned i = 0; i < UUID_BYTES; i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10) into[at++] = '-';
        into[at++] = DIGITS[bytes[i] >> 4];
        into[at++] = DIGITS[bytes[i] & 15];
    }
    into[at] = 0;
}

API nvmlDeviceGetHandleByUUIDV(const struct uuid_query *query, handle *into)
{
    char text[45];
    int code = library_ready();
    if (code != OK) return code;
    if (!query || !into) return INVALID_ARGUMENT;
    if (query->version != VERSION(struct uuid_query, 1)) return VERSION_MISMATCH;
    if (query->type == UUID_AS_BYTES) spell_uuid((const unsigned char *)query->text, text);
    else if (query->type == UUID_AS_TEXT) {
        for (unsigned i = 0; i < 44; i++) text[i] = query->text[i];
        text[44] = 0;
    } else return INVALID_ARGUMENT;
    return find(has_uuid, text, into);
}
