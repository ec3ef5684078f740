/* Accounting: processes that had a card open, as its page has them. */
#include "library.h"

struct account_stats {
    uint32_t usage, memory_usage;
    uint64_t memory_max, time_ms, start_us;
    uint32_t running, reserved[5];
};
SIZE(struct account_stats, 56);

SHARED_NUMBER(nvmlDeviceGetAccountingMode, unsigned, page->accounting)
SHARED_NUMBER(nvmlDeviceGetAccountingBufferSize, unsigned, 4000)

API nvmlDeviceGetAccountingPids(handle device, unsigned *count, unsigned *pids)
{
    struct device d;
    int code = shared_open(device, count, &d);
    if (code != OK) return code;
    unsigned there = account_count(&d.page), room = *count;
    *count = there;
    if (!room || !pids || room < there) return INSUFFICIENT_SIZE; /* also if there are none */
    for (unsigned i = 0; i < there; i++) pids[i] = (unsigned)d.page.accounts[i].pid;
    return OK;
}

API nvmlDeviceGetAccountingStats(handle device, unsigned pid, struct account_stats *into)
{
    struct device d;
    int code = shared_open(device, into, &d);
    if (code != OK) return code;
    for (unsigned i = account_count(&d.page); i--;) { /* the last one of that number */
        const struct account *account = &d.page.accounts[i];
        if ((unsigned)account->pid != pid) continue;
        *into = (struct account_stats){
            account_usage(account, account->busy), account_usage(account, account->memory_busy), account->memory_max,
            account->running ? 0 : account_ms(account), account->start_us, account->running != 0, {0},
        };
        return OK;
    }
    return NOT_FOUND;
}

API nvmlDeviceSetAccountingMode(handle device, unsigned mode)
{
    struct device d;
    int code = gpu_open(device, device, &d);
    if (code != OK) return code;
    return mode < 2 ? card_set(&d.page, "accounting", mode, 0) : INVALID_ARGUMENT;
}

API nvmlDeviceClearAccountingPids(handle device)
{
    struct device d;
    int code = gpu_open(device, device, &d);
    return code == OK ? card_set(&d.page, "clear_accounts", 0, 0) : code;
}
