/* The table of functions without names that NVIDIA's own tools use besides the public ones, as drivers of the 580 series
 * have it: its first word is its size in bytes, and the slots that follow are numbered from 1. */
#include "library.h"

enum { SLOTS = 269, ID_BYTES = 16 };

union word { uint64_t bytes; void (*slot)(void); };

/* Bytes that may lie anywhere, or nowhere: the kernel writes them, or refuses. */
static void zero_safely(void *at, size_t size)
{
    int file = sys_open("/dev/zero");
    if (file < 0) return;
    sys_read(file, at, size);
    sys_close(file);
}

/* A slot nobody was seen to use. Most take a device and then a place for the answer. */
static int unknown(handle device, void *into)
{
    struct device d;
    if (device_open(device, &d) == OK) zero_safely(into, sizeof(uint32_t));
    return OK;
}

/* A log of what the tool does. */
static int trace(void) { return OK; }

/* The page of a card for where it is, also when it no longer responds: the tool names it in its error message. */
static int place_page(unsigned index, struct page *into)
{
    into->magic = 0;
    int code = card_page(index, into);
    return code == GPU_IS_LOST && into->magic == PAGE_MAGIC ? OK : code;
}

static int bus_id(unsigned index, char *into, unsigned size)
{
    struct page page;
    int code = place_page(index, &page);
    if (code != OK) return code;
    struct pci pci = pci_of(page.pci_domain, page.pci_bus, page.pci_device, page.pci_id, page.pci_subsystem);
    return answer_text(into, size, pci.second.first.bus_id);
}

#define SLOT_NUMBER(function, condition, value_) \
    static int function(handle device, unsigned *into) \
    { \
        struct device d; \
        int code = gpu_open(device, into, &d); \
        if (code == OK && !(condition)) code = NOT_SUPPORTED; \
        if (code == OK) *into = (value_); \
        return code; \
    }

SLOT_NUMBER(can_be_monitored, 1, 1)
SLOT_NUMBER(host_pcie_generation, has_host_generation(&d.page), d.page.pcie_generation)
SLOT_NUMBER(nothing, 1, 0)
SLOT_NUMBER(enforced_power_limit, 1, d.page.power_limit_mw)
SLOT_NUMBER(no_power_hints, 0, 0)

/* The tool changes the mode, and says so, by this slot rather than by the public function. */
static int set_persistence(handle device, unsigned mode) { return nvmlDeviceSetPersistenceMode(device, mode); }

/* What resets cards, and gets them ready for it: nobody may. */
static int refused(void) { return NO_PERMISSION; }

/* What people write for a card's place on the bus, and where a card is: the tool compares them. */
static int parse_bus_id(const char *text, unsigned *domain, unsigned *bus, unsigned *device, unsigned *function)
{
    unsigned address[3];
    if (!text || !domain || !bus || !device || !function || !parse_address(text, address)) return INVALID_ARGUMENT;
    *domain = address[0], *bus = address[1], *device = address[2], *function = 0;
    return OK;
}

static int place_on_bus(unsigned index, unsigned *domain, unsigned *bus, unsigned *device)
{
    struct page page;
    if (!domain || !bus || !device) return INVALID_ARGUMENT;
    int code = place_page(index, &page);
    if (code == OK) *domain = page.pci_domain, *bus = page.pci_bus, *device = page.pci_device;
    return code;
}

static int gpu_part_number(handle device, char *into, unsigned size)
{
    struct device d;
    int code = gpu_open(device, into, &d);
    if (code != OK) return code;
    return d.page.gpu_part_number[0] ? answer_text(into, size, d.page.gpu_part_number) : NOT_SUPPORTED;
}

/* The part number of a board that is replaced as a whole: none has one. */
static int no_text(handle device, char *into, unsigned size)
{
    struct device d;
    int code = gpu_open(device, into, &d);
    return code == OK ? answer_text(into, size, "") : code;
}

#define SLOT(function) {.slot = (void (*)(void))(function)}

static const union word TABLE[1 + SLOTS] = {
    {.bytes = sizeof TABLE},
    [1 ... 11] = SLOT(unknown), [12] = SLOT(parse_bus_id), [13 ... 25] = SLOT(unknown),
    [26] = SLOT(trace), [27 ... 71] = SLOT(unknown),
    [72] = SLOT(can_be_monitored), [73 ... 74] = SLOT(unknown), [75] = SLOT(place_on_bus), [76 ... 80] = SLOT(unknown),
    [81] = SLOT(bus_id), [82 ... 107] = SLOT(unknown),
    [108] = SLOT(enforced_power_limit), [109 ... 144] = SLOT(unknown),
    [145] = SLOT(process_samples), [146 ... 167] = SLOT(unknown),
    [168 ... 169] = SLOT(refused), [170 ... 198] = SLOT(unknown),
    [199] = SLOT(no_power_hints), [200 ... 212] = SLOT(unknown),
    [213] = SLOT(compute_processes_named), [214] = SLOT(graphics_processes_named), [215] = SLOT(mps_processes_named),
    [216 ... 229] = SLOT(unknown),
    [230] = SLOT(host_pcie_generation), [231] = SLOT(gpu_part_number), [232] = SLOT(nothing),
    [233 ... 236] = SLOT(unknown), [237] = SLOT(no_text), [238 ... 248] = SLOT(unknown),
    [249] = SLOT(nothing), [250] = SLOT(unknown), [251] = SLOT(set_persistence), [252 ... SLOTS] = SLOT(unknown),
};
SIZE(TABLE, 2160);

static const unsigned char ID[ID_BYTES] = {
    0xc4, 0xfe, 0x3e, 0x6c, 0xc9, 0x8f, 0x6c, 0x4e, 0xa3, 0x27, 0xee, 0x69, 0x6e, 0x12, 0xf7, 0xc4,
};

API nvmlInternalGetExportTable(const void **table, const unsigned char *id)
{
    if (!table || !id) return INVALID_ARGUMENT;
    unsigned same = 0;
    while (same < ID_BYTES && id[same] == ID[same]) same++;
    *table = same == ID_BYTES ? TABLE : 0;
    return *table ? OK : NOT_FOUND;
}
