/* What changes a card: power limit, clocks and modes. The card's owner decides, and its answer is passed on. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "main.h"
#include "setting.h"

const char *code_text(int code)
{
    switch (code) {
    case 2: return "Invalid Argument";
    case 3: return "Not Supported";
    case READ_NO_PERMISSION: return "Insufficient Permissions";
    case 6: return "Not Found";
    case 19: return "In use by another client";
    case 23: return "Insufficient Resources";
    case 27: return "System is not in ready state";
    default: return "Unknown Error";
    }
}

enum outcome refuse(struct attempt *attempt, int code, const char *what)
{
    attempt->code = code;
    printf("%s for GPU %s: %s\n", what, attempt->bus, code_text(code));
    return FAILED;
}

enum outcome refuse_clocks(struct attempt *attempt, int code)
{
    if (code != READ_NO_PERMISSION) return refuse(attempt, code, "Unable to set clocks");
    attempt->code = code;
    printf("The current user does not have permission to change clocks for GPU %s.\n", attempt->bus);
    return FAILED;
}

enum outcome invalid(struct attempt *attempt) { attempt->code = EXIT_BAD_INPUT; return FAILED; }

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
    if (code) return refuse(attempt, code, "Failed to set power management limit");
    printf("Power limit for GPU %s was set to %.2f W from %.2f W.\n", attempt->bus, watts, page->power_limit_mw / 1000.0);
    return DONE;
}

int read_numbers(const char *text, unsigned numbers[2])
{
    int end = 0, many = sscanf(text, "%u,%u%n", &numbers[0], &numbers[1], &end);
    if (many == 2 && !text[end]) return 2;
    return sscanf(text, "%u%n", &numbers[0], &end) == 1 && !text[end] ? 1 : 0;
}

static enum outcome unsupported(const struct attempt *attempt, const char *first, unsigned a, const char *second, unsigned b)
{
    printf("Specified clock combination \"(%s %u, %s %u)\" is not supported for GPU %s. "
           "Run 'nvidia-smi -q -d SUPPORTED_CLOCKS' to see list of supported clock combinations\n", first, a, second, b, attempt->bus);
    return WARNED;
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
    if (clock[0] > clock[1]) return unsupported(attempt, "gpuClkMin", clock[0], "gpuClkMax", clock[1]);
    int code = card_set(attempt->page, "sm_clocks", clock[0], clock[1]);
    if (code) return refuse_clocks(attempt, code);
    printf("GPU clocks set to \"(gpuClkMin %u, gpuClkMax %u)\" for GPU %s\n", clock[0], clock[1], attempt->bus);
    return DONE;
}

static enum outcome reset_clocks(struct attempt *attempt)
{
    int code = card_set(attempt->page, "reset_sm_clocks", 0, 0);
    return code ? refuse_clocks(attempt, code) : DONE;
}

static int is_supported(const struct page *page, unsigned memory, unsigned sm)
{
    unsigned clocks[MAX_CLOCKS], many = supported_clocks(page, clocks), found = 0;
    for (unsigned i = 0; i < many; i++) found |= clocks[i] == sm;
    for (unsigned i = 0; found && i < MAX_MEMORY_CLOCKS; i++)
        if (memory && memory_clock_at(page, i) == memory) return 1;
    return 0;
}

static enum outcome set_applications_clocks(struct attempt *attempt)
{
    unsigned clock[2];
    if (read_numbers(attempt->given, clock) != 2) {
        printf("Specified clocks \"%s\" are not valid. Please format input as memClk,smClk e.g. --applications-clocks=2000,300\n", attempt->given);
        return invalid(attempt);
    }
    if (!is_supported(attempt->page, clock[0], clock[1])) return unsupported(attempt, "MEM", clock[0], "SM", clock[1]);
    int code = card_set(attempt->page, "applications_clocks", clock[0], clock[1]);
    if (code) return refuse_clocks(attempt, code);
    printf("Applications clocks set to \"(MEM %u, SM %u)\" for GPU %s\n", clock[0], clock[1], attempt->bus);
    return DONE;
}

static enum outcome reset_applications_clocks(struct attempt *attempt)
{
    int code = card_set(attempt->page, "reset_applications_clocks", 0, 0);
    return code ? refuse_clocks(attempt, code) : DONE;
}

static const char *const PERSISTENCE[] = {"DISABLED", "ENABLED"}, *const PERSISTENCE_DONE[] = {"Disabled", "Enabled"};
static const char *const COMPUTE[] = {"DEFAULT", "EXCLUSIVE_THREAD", "PROHIBITED", "EXCLUSIVE_PROCESS"};

static int is_number(const char *text)
{
    char *end;
    strtod(text, &end);
    return end != text && !*end;
}

int mode_named(const char *given, const char *const *names, int many)
{
    for (int i = 0; i < many; i++)
        if (!strcasecmp(given, names[i]) || (is_number(given) && atoi(given) == i)) return i;
    return -1;
}

static enum outcome set_persistence(struct attempt *attempt)
{
    int mode = mode_named(attempt->given, PERSISTENCE, 2);
    if (mode < 0) {
        printf("Invalid persistence mode: %s\n", attempt->given);
        return invalid(attempt);
    }
    if ((int)attempt->page->persistence == mode) {
        printf("Persistence mode is already %s for GPU %s.\n", PERSISTENCE_DONE[mode], attempt->bus);
        return DONE;
    }
    int code = card_set(attempt->page, "persistence", mode, 0);
    if (code) refuse(attempt, code, "Unable to set persistence mode"); /* and yet the real one goes on as if it had */
    printf("%s persistence mode for GPU %s.\n", PERSISTENCE_DONE[mode], attempt->bus);
    return DONE;
}

static enum outcome set_compute_mode(struct attempt *attempt)
{
    int mode = mode_named(attempt->given, COMPUTE, 4);
    if (mode < 0) {
        printf("Invalid compute mode: %s\n", attempt->given);
        return invalid(attempt);
    }
    if ((int)attempt->page->compute_mode == mode) {
        printf("Compute mode is already set to %s for GPU %s.\n", COMPUTE[mode], attempt->bus);
        return DONE;
    }
    int code = card_set(attempt->page, "compute_mode", mode, 0);
    if (code) return refuse(attempt, code, "Unable to set the compute mode");
    printf("Set compute mode to %s for GPU %s.\n", COMPUTE[mode], attempt->bus);
    return DONE;
}

static const struct { int option; enum outcome (*set)(struct attempt *attempt); } SETTERS[] = {
    {O_PERSISTENCE, set_persistence}, {O_COMPUTE_MODE, set_compute_mode}, {O_POWER_LIMIT, set_power_limit},
    {O_LOCK_CLOCKS, lock_clocks}, {O_RESET_CLOCKS, reset_clocks}, {O_APPLICATIONS_CLOCKS, set_applications_clocks},
    {O_RESET_APPLICATIONS_CLOCKS, reset_applications_clocks}, {O_MIG, set_mig}, {O_ECC, set_ecc}, {O_CLEAR_ECC, clear_ecc},
    {O_ACCOUNTING, set_accounting}, {O_CLEAR_ACCOUNTED, clear_accounted}, {O_MEMORY_CLOCKS, lock_memory_clocks},
    {O_RESET_MEMORY_CLOCKS, reset_memory_clocks}, {O_TARGET_TEMPERATURE, set_target_temperature},
};

/* A value that is neither a number nor a name is wrong whatever the cards can do. */
static int check(const char *given, const char *option, const char *const *names, int many)
{
    if (!given || is_number(given) || mode_named(given, names, many) >= 0) return EXIT_GOOD;
    printf("ERROR: Option %s is invalid for %s. Please run 'nvidia-smi -h' for help.\n\n", given, option);
    return EXIT_BAD_INPUT;
}

static int check_all(const char **values)
{
    static const struct { int option; const char *name; const char *const *names; int many; } CHECKS[] = {
        {O_POWER_LIMIT, "-pl", 0, 0}, {O_PERSISTENCE, "-pm", PERSISTENCE, 2}, {O_COMPUTE_MODE, "-c", COMPUTE, 4},
        {O_MIG, "-mig", 0, 0}, {O_ECC, "-e", 0, 0}, {O_CLEAR_ECC, "-p", 0, 0}, {O_ACCOUNTING, "-am", 0, 0},
        {O_TARGET_TEMPERATURE, "-gtt", 0, 0},
    };
    for (size_t i = 0; i < sizeof CHECKS / sizeof *CHECKS; i++) {
        int code = check(values[CHECKS[i].option], CHECKS[i].name, CHECKS[i].names, CHECKS[i].many);
        if (code) return code;
    }
    return EXIT_GOOD;
}

int change_settings(struct machine *machine, const char **values)
{
    int code = check_all(values);
    if (code) return code;
    if (values[O_RESET]) return reset_cards(machine, values[O_RESET]);
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
