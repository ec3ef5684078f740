/* Settings: how they go, and those that only a real driver can carry out. */
#ifndef SIMGPU_SETTING_H
#define SIMGPU_SETTING_H

#include "smi.h"

/* A warning lets the other cards have their turn; an error ends the command. */
enum outcome { DONE, WARNED, FAILED };
struct attempt { const struct page *page; char bus[CELL]; const char *given; int code; };
typedef enum outcome setting(struct attempt *attempt);

enum outcome refuse(struct attempt *attempt, int code, const char *what);
enum outcome refuse_clocks(struct attempt *attempt, int code);
enum outcome invalid(struct attempt *attempt);
/* A mode is given by number or by name; -1 for anything else. */
int mode_named(const char *given, const char *const *names, int many);
/* One number or two; how many there were, or 0 for anything else. */
int read_numbers(const char *text, unsigned numbers[2]);

/* driver.c */
setting set_mig, set_ecc, clear_ecc, set_accounting, clear_accounted, lock_memory_clocks, reset_memory_clocks, set_target_temperature;
int reset_cards(const struct machine *machine, const char *given);

#endif
