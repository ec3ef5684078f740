/* What dmon and pmon share: rows that scroll, at a pace, for a while. */
#ifndef SIMGPU_MONITOR_H
#define SIMGPU_MONITOR_H

#include "smi.h"

enum { M_ID, M_DELAY, M_COUNT, M_SELECT, M_OPTIONS, M_FILE, M_HELP, M_FORMAT, M_METRICS, M_MANY };
enum heading { NAMES, UNITS };

struct monitor {
    const char *values[M_MANY];
    int date, time, csv, no_header, no_units;
    long count; /* rows, or 0 for no end */
    uint64_t delay_ms;
    unsigned since_heading; /* lines */
    struct machine machine;
};

/* What the two differ in: the longest pause, and how many of the options above there are. */
struct monitoring { const char *command; long longest; unsigned options; };

/* The command line; -1 to go on, else the exit code. */
int monitor_open(struct monitor *monitor, const struct monitoring *as, int count, char **words);
/* The beginning of a line: date and time where they are wanted, then the card. */
void monitor_heading(const struct monitor *monitor, enum heading heading);
void monitor_card(struct monitor *monitor, const struct gpu *gpu);
/* Whether headings are due: at the start, and after a screen of rows. */
int monitor_heads(struct monitor *monitor);
/* Call `round` for each row with the cards read anew, waiting between rows. */
int monitor_run(struct monitor *monitor, void (*round)(struct monitor *monitor, int first));

#endif
