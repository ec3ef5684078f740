/* The card's place on the bus, and what goes over it. */
#include "library.h"

enum { BUS_PCIE = 2, TO_HOST = 0, FROM_HOST = 1 };

NUMBER(nvmlDeviceGetBusType, unsigned, BUS_PCIE)
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, unsigned, page->pcie_generation)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, unsigned, page->pcie_generation)
NUMBER(nvmlDeviceGetGpuMaxPcieLinkGeneration, unsigned, page->pcie_generation)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, unsigned, page->pcie_width)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, unsigned, page->pcie_width)
NUMBER(nvmlDeviceGetPcieLinkMaxSpeed, unsigned, page->pcie_generation)
SHARED_NUMBER(nvmlDeviceGetPcieReplayCounter, unsigned, 0)

/* Megatransfers a second: twice as many with each generation, but for the third's better code. */
static unsigned speed(unsigned generation)
{
    return generation < 3 ? 2500 * generation : generation < 8 ? 1000u << generation : 0;
}

NUMBER(nvmlDeviceGetPcieSpeed, unsigned, speed(page->pcie_generation))

static size_t add_hexadecimal(char *text, size_t at, unsigned number, unsigned digits, size_t size)
{
    char digit[2] = {0, 0};
    for (unsigned i = digits; i-- > 0;) {
        digit[0] = "0123456789ABCDEF"[number >> 4 * i & 15];
        at = text_add(text, at, digit, size);
    }
    return at;
}

static void spell_address(char *into, size_t size, unsigned domain, unsigned digits, unsigned bus, unsigned device)
{
    size_t at = add_hexadecimal(into, 0, domain, digits, size);
    at = text_add(into, at, ":", size);
    at = add_hexadecimal(into, at, bus, 2, size);
    at = text_add(into, at, ":", size);
    at = add_hexadecimal(into, at, device, 2, size);
    text_add(into, at, ".0", size);
}

struct pci pci_of(unsigned domain, unsigned bus, unsigned device, unsigned id, unsigned subsystem)
{
    struct pci pci = {{{{0}, domain, bus, device, id}, subsystem}, {0}};
    spell_address(pci.second.first.bus_id, sizeof pci.second.first.bus_id, domain, 4, bus, device);
    spell_address(pci.bus_id, sizeof pci.bus_id, domain, 8, bus, device);
    return pci;
}

static int open_pci(handle device, const void *into, struct device *d, struct pci *pci)
{
    int code = gpu_open(device, into, d);
    if (code != OK) return code;
    const struct page *page = &d->page;
    *pci = pci_of(page->pci_domain, page->pci_bus, page->pci_device, page->pci_id, page->pci_subsystem);
    return OK;
}

API nvmlDeviceGetPciInfo(handle device, struct pci_v1 *into)
{
    struct device d;
    struct pci pci;
    int code = open_pci(device, into, &d, &pci);
    if (code == OK) *into = pci.second.first;
    return code;
}

API nvmlDeviceGetPciInfo_v2(handle device, struct pci_v2 *into)
{
    struct device d;
    struct pci pci;
    int code = open_pci(device, into, &d, &pci);
    if (code == OK) *into = pci.second;
    return code;
}

API nvmlDeviceGetPciInfo_v3(handle device, struct pci *into)
{
    struct device d;
    struct pci pci;
    int code = open_pci(device, into, &d, &pci);
    if (code == OK) *into = pci;
    return code;
}

API nvmlDeviceGetPciInfoExt(handle device, struct pci_ext *into)
{
    struct device d;
    struct pci pci;
    int code = open_pci(device, into, &d, &pci);
    if (code != OK) return code;
    if (into->version != VERSION(*into, 1)) return VERSION_MISMATCH;
    struct pci_v1 *first = &pci.second.first;
    *into = (struct pci_ext){into->version, first->domain, first->bus, first->device, first->id, pci.second.subsystem,
                             pci_class(&d.page) >> 8, pci_class(&d.page) & 0xff, {0}};
    text_copy(into->bus_id, pci.bus_id, sizeof into->bus_id);
    return OK;
}

API nvmlDeviceGetPcieThroughput(handle device, unsigned way, unsigned *into)
{
    struct device d;
    int code = gpu_open(device, into, &d);
    if (code != OK) return code;
    if (way > FROM_HOST) return INVALID_ARGUMENT;
    *into = way == TO_HOST ? d.page.pcie_tx_kbps : d.page.pcie_rx_kbps;
    return OK;
}
