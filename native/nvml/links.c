/* NVLink: where a card has links, all of them are up and end in switches, or in the next card. */
#include "library.h"

enum { REMOTE_GPU = 0, REMOTE_SWITCH = 2, CAPABILITIES = 6, ERROR_KINDS = 5, FABRIC_COMPLETED = 3 };
enum { SWITCHES = 4, FIRST_SWITCH = 0xf0 };

static int open_link(handle device, unsigned link, const void *into, struct device *d)
{
    int code = gpu_open(device, into, d);
    if (code != OK) return code;
    if (!d->page.links) return NOT_SUPPORTED;
    return link < d->page.links ? OK : INVALID_ARGUMENT;
}

API nvmlDeviceGetNvLinkState(handle device, unsigned link, unsigned *into)
{
    struct device d;
    int code = open_link(device, link, into, &d);
    if (code == OK) *into = 1;
    return code;
}

/* NVML counts versions, not generations: 2.2 and 3.1 are some of them. */
unsigned link_version(const struct page *page)
{
    static const unsigned NUMBERS[] = {0, 1, 2, 4, 6, 7, 8};
    return page->link_version < sizeof NUMBERS / sizeof *NUMBERS ? NUMBERS[page->link_version] : 0;
}

API nvmlDeviceGetNvLinkVersion(handle device, unsigned link, unsigned *into)
{
    struct device d;
    int code = open_link(device, link, into, &d);
    if (code == OK) *into = link_version(&d.page);
    return code;
}

API nvmlDeviceGetNvLinkCapability(handle device, unsigned link, unsigned capability, unsigned *into)
{
    struct device d;
    int code = open_link(device, link, into, &d);
    if ((code == OK || code == NOT_SUPPORTED) && capability >= CAPABILITIES) return INVALID_ARGUMENT;
    if (code == OK) *into = 1;
    return code;
}

API nvmlDeviceGetNvLinkErrorCounter(handle device, unsigned link, unsigned kind, uint64_t *into)
{
    struct device d;
    int code = open_link(device, link, into, &d);
    if (code != OK) return code;
    if (kind >= ERROR_KINDS) return INVALID_ARGUMENT;
    *into = 0;
    return OK;
}

API nvmlDeviceGetNvLinkRemoteDeviceType(handle device, unsigned link, unsigned *into)
{
    struct device d;
    int code = open_link(device, link, into, &d);
    if (code == OK) *into = d.page.fabric ? REMOTE_SWITCH : REMOTE_GPU;
    return code;
}

/* Neighbouring links go to the same switch. */
static struct pci switch_of(const struct page *page, unsigned link)
{
    return pci_of(page->pci_domain, FIRST_SWITCH + link * SWITCHES / page->links, 0, 0, 0);
}

/* Without switches, all links lead to the card with which this one makes a pair. */
static int partner_of(const struct device *d, struct pci *into)
{
    struct page other;
    int code = card_page(d->card ^ 1, &other);
    if (code == OK) *into = pci_of(other.pci_domain, other.pci_bus, other.pci_device, other.pci_id, 0);
    return code == INVALID_ARGUMENT ? NOT_SUPPORTED : code;
}

static int remote(handle device, unsigned link, const void *into, struct pci *pci)
{
    struct device d;
    int code = open_link(device, link, into, &d);
    if (code != OK) return code;
    if (!d.page.fabric) return partner_of(&d, pci);
    *pci = switch_of(&d.page, link);
    return OK;
}

API nvmlDeviceGetNvLinkRemotePciInfo(handle device, unsigned link, struct pci_v2 *into)
{
    struct pci pci;
    int code = remote(device, link, into, &pci);
    if (code == OK) *into = pci.second;
    return code;
}

API nvmlDeviceGetNvLinkRemotePciInfo_v2(handle device, unsigned link, struct pci *into)
{
    struct pci pci;
    int code = remote(device, link, into, &pci);
    if (code == OK) *into = pci;
    return code;
}

/* Cards before Hopper have switches too, but do not join a fabric. */
static int has_fabric_state(const struct page *page) { return page->fabric && page->capability >= 900; }

static struct fabric fabric_of(const struct page *page)
{
    struct fabric fabric;
    clear(&fabric, sizeof fabric);
    fabric.state = has_fabric_state(page) ? FABRIC_COMPLETED : 0;
    return fabric;
}

API nvmlDeviceGetGpuFabricInfo(handle device, struct fabric *into)
{
    struct device d;
    int code = gpu_open(device, into, &d);
    if (code == OK) *into = fabric_of(&d.page);
    return code;
}

API nvmlDeviceGetGpuFabricInfoV(handle device, struct fabric_v3 *into)
{
    struct device d;
    int code = gpu_open(device, into, &d);
    if (code != OK) return code;
    int third = into->second.version == VERSION(struct fabric_v3, 3);
    if (!third && into->second.version != VERSION(struct fabric_v2, 2)) return VERSION_MISMATCH;
    into->second.first = fabric_of(&d.page);
    into->second.health = 0;
    if (third) into->summary = has_fabric_state(&d.page) ? 1 : 0;
    return OK;
}
