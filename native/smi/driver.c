/* Settings of a driver that a simulated card does not have: changing them fails for lack of permission. */
#include <stdio.h>
#include "setting.h"

enum { IN_USE = 19 };
static const char *const NUMBERS_ONLY[] = {"0", "1"};

static enum outcome forbid(struct attempt *attempt, const char *what) { return refuse(attempt, READ_NO_PERMISSION, what); }

/* 0 or 1; -1 after an error message. */
static int choose(struct attempt *attempt, const char *what)
{
    int mode = mode_named(attempt->given, NUMBERS_ONLY, 2);
    if (mode < 0) printf("Invalid %s: %s\n", what, attempt->given);
    return mode;
}

enum outcome set_mig(struct attempt *attempt)
{
    int mode = choose(attempt, "MIG Mode");
    if (mode < 0) return invalid(attempt);
    int code = card_set(attempt->page, "mig_mode", mode, 0);
    if (code == IN_USE && mode) {
        printf("Warning: MIG mode is in pending enable state for GPU %s:%s\n"
               "%s is currently being used by one or more other processes (e.g. CUDA application or a monitoring application such as "
               "another instance of nvidia-smi). Please first kill all processes using the device and retry the command or reboot "
               "the system to make MIG mode effective.\n", attempt->bus, code_text(code), attempt->bus);
        return DONE;
    }
    if (code) return refuse(attempt, code, mode ? "Unable to enable MIG Mode" : "Unable to disable MIG Mode");
    printf("%s MIG Mode for GPU %s\n", mode ? "Enabled" : "Disabled", attempt->bus);
    return DONE;
}

enum outcome set_ecc(struct attempt *attempt)
{
    int mode = choose(attempt, "ECC configuration code");
    if (mode < 0) return invalid(attempt);
    if (!has_ecc(attempt->page)) {
        printf("ECC features not supported for GPU %s.\n", attempt->bus);
        return WARNED;
    }
    if (mode != counts_errors(attempt->page)) return forbid(attempt, "Unable to set ECC config");
    printf("ECC support is already %s for GPU %s.\n", mode ? "Enabled" : "Disabled", attempt->bus);
    return DONE;
}

enum outcome clear_ecc(struct attempt *attempt)
{
    return choose(attempt, "ECC type") < 0 ? invalid(attempt) : forbid(attempt, "Unable to clear ECC errors");
}

enum outcome set_accounting(struct attempt *attempt)
{
    static const char *const MODES[] = {"Disabled", "Enabled"};
    int mode = choose(attempt, "accounting mode");
    if (mode < 0) return invalid(attempt);
    if ((int)attempt->page->accounting == mode) {
        printf("Accounting Mode is already %s for GPU %s.\n", MODES[mode], attempt->bus);
        return DONE;
    }
    int code = card_set(attempt->page, "accounting", mode, 0);
    if (code) return refuse(attempt, code, "Unable to set Accounting Mode");
    printf("%s Accounting Mode for GPU %s.\n", MODES[mode], attempt->bus);
    return DONE;
}

enum outcome clear_accounted(struct attempt *attempt)
{
    int code = card_set(attempt->page, "clear_accounts", 0, 0);
    if (code) return refuse(attempt, code, "Unable to clear Accounted PIDs");
    printf("Cleared Accounted PIDs for GPU %s.\n", attempt->bus);
    return DONE;
}

/* Memory clocks cannot be locked; callers that may set clocks get that message, others a lack of permission. */
enum outcome lock_memory_clocks(struct attempt *attempt)
{
    unsigned clocks[2];
    if (!read_numbers(attempt->given, clocks)) {
        printf("Specified clocks \"%s\" are not valid. Please format input as 'memClkMin,memClkMax' or 'memClkVal' e.g. "
               "--lock-memory-clocks=5100,5100 or --lock-memory-clocks=5100\n", attempt->given);
        return invalid(attempt);
    }
    if (!attempt->page->control[0]) return refuse_clocks(attempt, READ_NO_PERMISSION);
    puts("This option is not supported. Please use --lock-memory-clocks-deferred instead.");
    return DONE;
}

enum outcome reset_memory_clocks(struct attempt *attempt)
{
    if (!attempt->page->control[0]) return refuse_clocks(attempt, READ_NO_PERMISSION);
    printf("Setting locked Memory clocks is not supported for GPU %s.\n", attempt->bus);
    return WARNED;
}

enum outcome set_target_temperature(struct attempt *attempt)
{
    printf("GPU Target Temperature Threshold not supported for GPU %s.\n", attempt->bus);
    return WARNED;
}

int reset_cards(const struct machine *machine, const char *given)
{
    char bus[CELL];
    if (*given) {
        puts("Invalid argument with -r\n");
        return EXIT_BAD_INPUT;
    }
    bus_id(&machine->gpu[0].page, bus);
    printf("Unable to disable persistence mode for GPU %s: Insufficient Permissions\n", bus);
    return READ_NO_PERMISSION;
}
