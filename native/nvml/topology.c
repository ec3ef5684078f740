/* How cards and processors lie to one another. */
#include "library.h"

enum { LEVEL_SAME = 0, LEVEL_NODE = 40, LEVEL_SYSTEM = 50, PASS_THROUGH = 1, BITS = 64 };
enum { P2P_READ, P2P_WRITE, P2P_NVLINK, P2P_KINDS = 6 };
enum { P2P_OK = 0, P2P_CHIPSET_NOT_SUPPORTED = 1, P2P_NOT_SUPPORTED = 5 };
enum { SCOPE_NODE, SCOPE_SOCKET, SCOPES };

static int affinity(handle device, unsigned words, uint64_t *into)
{
    struct device d;
    int code = gpu_open(device, into, &d);
    if (code != OK) return code;
    if (!words) return INVALID_ARGUMENT;
    uint64_t first = d.page.first_cpu, end = first + d.page.cpus;
    for (uint64_t word = 0; word < words; word++) {
        uint64_t bits = 0;
        for (uint64_t bit = 0; bit < BITS; bit++)
            if (word * BITS + bit >= first && word * BITS + bit < end) bits |= 1ull << bit;
        into[word] = bits;
    }
    return OK;
}

API nvmlDeviceGetCpuAffinity(handle device, unsigned words, uint64_t *into) { return affinity(device, words, into); }

API nvmlDeviceGetCpuAffinityWithinScope(handle device, unsigned words, uint64_t *into, unsigned scope)
{
    int code = library_ready();
    if (code != OK) return code;
    return scope < SCOPES ? affinity(device, words, into) : INVALID_ARGUMENT;
}

API nvmlDeviceGetMemoryAffinity(handle device, unsigned words, uint64_t *into, unsigned scope)
{
    struct device d;
    int code = gpu_open(device, into, &d);
    if (code != OK) return code;
    if (!words || scope >= SCOPES) return INVALID_ARGUMENT;
    if (d.page.numa < 0) return NOT_SUPPORTED;
    for (unsigned word = 0; word < words; word++) into[word] = 0;
    if ((unsigned)d.page.numa / BITS < words) into[d.page.numa / BITS] = 1ull << d.page.numa % BITS;
    return OK;
}

static unsigned level_of(const struct page *one, const struct page *other)
{
    return one->index == other->index ? LEVEL_SAME : one->numa == other->numa ? LEVEL_NODE : LEVEL_SYSTEM;
}

/* A virtual machine does not see how its cards are wired. */
API nvmlDeviceGetTopologyCommonAncestor(handle one, handle other, unsigned *into)
{
    struct device a, b;
    int code = gpu_open(one, into, &a);
    if (code == OK) code = gpu_open(other, into, &b);
    if (code != OK) return code;
    if (a.page.virtualization == PASS_THROUGH) return NOT_SUPPORTED;
    *into = level_of(&a.page, &b.page);
    return OK;
}

API nvmlDeviceGetTopologyNearestGpus(handle device, unsigned level, unsigned *count, handle *into)
{
    struct device d;
    struct page other;
    unsigned found = 0;
    int code = gpu_open(device, count, &d);
    if (code != OK) return code;
    if (into && !*count) return INVALID_ARGUMENT;
    for (unsigned card = 0; card < card_count(); card++)
        if (card != d.card && card_page(card, &other) == OK && level_of(&d.page, &other) == level) {
            if (into && found < *count) into[found] = device_handle(card);
            found++;
        }
    if (into && *count < found) return INSUFFICIENT_SIZE;
    *count = found;
    return OK;
}

static unsigned p2p(const struct page *one, const struct page *other, unsigned kind)
{
    if (one->index == other->index) return P2P_NOT_SUPPORTED;
    if (one->links && other->links) return P2P_OK;
    if (kind == P2P_NVLINK) return P2P_NOT_SUPPORTED;
    return one->virtualization == PASS_THROUGH || one->numa != other->numa ? P2P_CHIPSET_NOT_SUPPORTED : P2P_OK;
}

API nvmlDeviceGetP2PStatus(handle one, handle other, unsigned kind, unsigned *into)
{
    struct device a, b;
    int code = gpu_open(one, into, &a);
    if (code == OK) code = gpu_open(other, into, &b);
    if (code != OK) return code;
    if (kind >= P2P_KINDS) return INVALID_ARGUMENT;
    *into = p2p(&a.page, &b.page, kind);
    return OK;
}
