/* What changes a card: power limit, clocks and modes. The card's owner decides, and its answer is passed on. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "main.h"
#include "smi.h"

enum { NOT_SUPPORTED = 3 };
/* A warning lets the other cards have their turn; an error ends the command. */
enum outcome { DONE, WARNED, FAILED };
struct attempt { const struct page *page; char bus[CELL]; const char *given; int code; };

static enum outcome refuse(struct attempt *attempt, int code, const char *what)
{
    static const char *const REASONS[] = {[READ_NO_PERMISSION] = "Insufficient Permissions", [NOT_SUPPORTED] = "Not Supported"};
    attempt->code = code;
    printf("Unable to set %s for GPU %s: %s\n", what, attempt->bus,
           code == READ_NO_PERMISSION || code == NOT_SUPPORTED ? REASONS[code] : "Unknown Error");
    return FAILED;
}

static enum outcome invalid(struct attempt *attempt) { attempt->code = EXIT_BAD_INPUT; return FAILED; }

static enum outcome set_power_limit(struct attempt *attempt)
{
    const struct page *page = attempt->page;
    double watts = strtod(attempt->given, 0), least = page->power_min_mw / 1000.0, most = page->power_max_mw / 1000.0;
    if (!(watts >= least && watts <= most)) {
        printf("Provided power limit %.2f W is not a valid power limit which should be between %.2f W and %.2f W for GPU %s\n",
               watts, least, most, attempt->bus);
        return invalid(attempt);
    }
    int code = card_set(page, "power_limit", (int64_t)(watts * 1000 + 0.5), 0);
    if (code) return refuse(attempt, code, "power limit");
    printf("Power limit for GPU %s was set to %.2f W from %.2f W.\n", attempt->bus, watts, page->power_limit_mw / 1000.0);
    return DONE;
}

/* One number or two; how many there were, or 0 for anything else. */
static int read_numbers(const char *text, unsigned numbers[2])
{
    int end = 0, many = sscanf(text, "%u,%u%n", &numbers[0], &numbers[1], &end);
    if (many == 2 && !text[end]) return 2;
    return sscanf(text, "%u%n", &numbers[0], &end) == 1 && !text[end] ? 1 : 0;
}

static enum outcome lock_clocks(struct attempt *attempt)
{
    unsigned clock[2];
    int many = read_numbers(attempt->given, clock);
    if (!many) {
        printf("Specified clocks \"%s\" are not valid. Please format input as 'gpuClkMin,gpuClkMax' or 'gpuClkVal' e.g. "
               "'--lock-gpu-clocks=1500,1500', '--lock-gpu-clocks=1500', or '--lock-gpu-clocks=tdp,unlimited'\n", attempt->given);
        return invalid(attempt);
    }
    if (many == 1) clock[1] = clock[0];
    int code = card_set(attempt->page, "sm_clocks", clock[0], clock[1]);
    if (code) return refuse(attempt, code, "locked clocks");
    printf("GPU clocks set to \"(gpuClkMin %u, gpuClkMax %u)\" for GPU %s\n", clock[0], clock[1], attempt->bus);
    return DONE;
}

static enum outcome reset_clocks(struct attempt *attempt)
{
    int code = card_set(attempt->page, "reset_sm_clocks", 0, 0);
    return code ? refuse(attempt, code, "locked clocks") : DONE;
}

static int is_supported(const struct page *page, unsigned memory, unsigned sm)
{
    unsigned clocks[MOST_CLOCKS], many = supported_clocks(page, clocks), found = 0;
    for (unsigned i = 0; i < many; i++) found |= clocks[i] == sm;
    for (unsigned i = 0; found && i < 4; i++)
        if (page->memory_clocks[i] && page->memory_clocks[i] == memory) return 1;
    return 0;
}

static enum outcome set_applications_clocks(struct attempt *attempt)
{
    unsigned clock[2];
    if (read_numbers(attempt->given, clock) != 2) {
        printf("Specified clocks \"%s\" are not valid. Please format input as 'memory,graphics'\n", attempt->given);
        return invalid(attempt);
    }
    if (!is_supported(attempt->page, clock[0], clock[1])) {
        printf("Specified clock combination \"(MEM %u, SM %u)\" is not supported for GPU %s. "
               "Run 'nvidia-smi -q -d SUPPORTED_CLOCKS' to see list of supported clock combinations\n", clock[0], clock[1], attempt->bus);
        return WARNED;
    }
    int code = card_set(attempt->page, "applications_clocks", clock[0], clock[1]);
    if (code) return refuse(attempt, code, "applications clocks");
    printf("Applications clocks set to \"(MEM %u, SM %u)\" for GPU %s\n", clock[0], clock[1], attempt->bus);
    return DONE;
}

static enum outcome reset_applications_clocks(struct attempt *attempt)
{
    int code = card_set(attempt->page, "reset_applications_clocks", 0, 0);
    return code ? refuse(attempt, code, "applications clocks") : DONE;
}

/* A mode is given by number or by name; -1 for anything else. */
static int mode_named(const char *given, const char *const *names, int many)
{
    for (int i = 0; i < many; i++)
        if (!strcasecmp(given, names[i]) || (isdigit((unsigned char)given[0]) && !given[1] && given[0] - '0' == i)) return i;
    return -1;
}

static enum outcome set_persistence(struct attempt *attempt)
{
    static const char *const NAMES[] = {"DISABLED", "ENABLED"}, *const DONE_NAMES[] = {"Disabled", "Enabled"};
    int mode = mode_named(attempt->given, NAMES, 2);
    if (mode < 0) {
        printf("Invalid persistence mode: %s\n", attempt->given);
        return invalid(attempt);
    }
    if ((int)attempt->page->persistence == mode) {
        printf("Persistence mode is already %s for GPU %s.\n", DONE_NAMES[mode], attempt->bus);
        return DONE;
    }
    int code = card_set(attempt->page, "persistence", mode, 0);
    if (code) return refuse(attempt, code, "persistence mode");
    printf("%s persistence mode for GPU %s.\n", DONE_NAMES[mode], attempt->bus);
    return DONE;
}

static enum outcome set_compute_mode(struct attempt *attempt)
{
    static const char *const NAMES[] = {"DEFAULT", "EXCLUSIVE_THREAD", "PROHIBITED", "EXCLUSIVE_PROCESS"};
    int mode = mode_named(attempt->given, NAMES, 4);
    if (mode < 0) {
        printf("Invalid compute mode: %s\n", attempt->given);
        return invalid(attempt);
    }
    if ((int)attempt->page->compute_mode == mode) {
        printf("Compute mode is already set to %s for GPU %s.\n", NAMES[mode], attempt->bus);
        return DONE;
    }
    int code = card_set(attempt->page, "compute_mode", mode, 0);
    if (code) return refuse(attempt, code, "compute mode");
    printf("Set compute mode to %s for GPU %s.\n", NAMES[mode], attempt->bus);
    return DONE;
}

static const struct { int option; enum outcome (*set)(struct attempt *attempt); } SETTERS[] = {
    {O_PERSISTENCE, set_persistence}, {O_COMPUTE_MODE, set_compute_mode}, {O_POWER_LIMIT, set_power_limit},
    {O_LOCK_CLOCKS, lock_clocks}, {O_RESET_CLOCKS, reset_clocks}, {O_APPLICATIONS_CLOCKS, set_applications_clocks},
    {O_RESET_APPLICATIONS_CLOCKS, reset_applications_clocks},
};

static int is_number(const char *text)
{
    char *end;
    strtod(text, &end);
    return end != text && !*end;
}

int change_settings(struct machine *machine, const char **values)
{
    if (values[O_POWER_LIMIT] && !is_number(values[O_POWER_LIMIT])) {
        printf("ERROR: Option %s is invalid for -pl. Please run 'nvidia-smi -h' for help.\n\n", values[O_POWER_LIMIT]);
        return EXIT_BAD_INPUT;
    }
    for (size_t i = 0; i < sizeof SETTERS / sizeof *SETTERS; i++)
        for (unsigned j = 0; values[SETTERS[i].option] && j < machine->count; j++) {
            struct attempt attempt = {.page = &machine->gpu[j].page, .given = values[SETTERS[i].option]};
            bus_id(attempt.page, attempt.bus);
            enum outcome outcome = SETTERS[i].set(&attempt);
            if (outcome == WARNED) puts("Treating as warning and moving on.");
            if (outcome == FAILED) {
                puts("Terminating early due to previous errors.");
                return attempt.code;
            }
        }
    puts("All done.");
    return EXIT_GOOD;
}
