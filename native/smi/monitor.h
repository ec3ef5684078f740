/* What dmon and pmon share: rows that scroll, at a pace, for a while. */
#ifndef SIMGPU_MONITOR_H
#define SIMGPU_MONITOR_H

#include "smi.h"

enum { M_ID, M_DELAY, M_COUNT, M_SELECT, M_OPTIONS, M_FILE, M_HELP, M_FORMAT, M_METRICS, M_LEVEL, M_MANY };
enum heading { NAMES, UNITS };

struct monitor {
    const char *values[M_MANY];
    int date, time, csv, no_header, no_units;
    long count; /* rows, or 0 for no end */
    uint64_t delay_ms;
    struct machine machine;
};

/* The command line; -1 to go on, else the exit code. */
int monitor_open(struct monitor *monitor, const char *command, int count, char **words);
/* The beginning of a line: date and time where they are wanted, then the card. */
void monitor_heading(const struct monitor *monitor, enum heading heading);
void monitor_card(const struct monitor *monitor, const struct gpu *gpu);
/* Call `round` for each row with the cards read anew, waiting between rows. */
int monitor_run(struct monitor *monitor, void (*round)(struct monitor *monitor, int first));

#endif
