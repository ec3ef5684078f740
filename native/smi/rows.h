/* The lines of -q and -q -x. */
#ifndef SIMGPU_ROWS_H
#define SIMGPU_ROWS_H

#include <stdio.h>
#include "values.h"

/* What -d can choose. */
enum topic {
    MEMORY = 1 << 0, UTILIZATION = 1 << 1, ECC = 1 << 2, TEMPERATURE = 1 << 3, POWER = 1 << 4, CLOCK = 1 << 5, COMPUTE = 1 << 6,
    PIDS = 1 << 7, PERFORMANCE = 1 << 8, SUPPORTED_CLOCKS = 1 << 9, PAGE_RETIREMENT = 1 << 10, ACCOUNTING = 1 << 11,
    ENCODER_STATS = 1 << 12, TARGET_TEMPERATURE = 1 << 13, VOLTAGE = 1 << 14, FBC_STATS = 1 << 15, ROW_REMAPPER = 1 << 16,
    GSP_FIRMWARE = 1 << 17, POWER_SMOOTHING = 1 << 18, POWER_PROFILES = 1 << 19,
};

/* Where lines go, and how deep. */
struct writer { int xml; unsigned depth; };
void write_group(struct writer *to, const char *label, const char *tag);
void write_end(struct writer *to, const char *tag);
void write_line(struct writer *to, const char *label, const char *tag, const char *text);
void write_number(struct writer *to, const char *label, const char *tag, unsigned long long number, const char *unit);

typedef void listing(struct writer *to, const struct subject *of);

/*
 * One line, or a group of the deeper lines after it. Without a label it is not in the text, without a tag not in the XML.
 * A group whose value is not available is a line with that text. `asked`: the text has it only if -d names its topic.
 */
struct row {
    unsigned depth;
    const char *label, *tag, *unit;
    struct value value;
    uint32_t topics; /* of an outermost line */
    int asked;
    int (*when)(const struct page *page);
    listing *list; /* writes the line or group itself */
    int group;
};

extern const struct row ROWS[];
extern const unsigned ROW_COUNT;

listing list_instances, list_clocks, list_processes, list_accounted;
listing list_power_samples, list_usage_samples;

#endif
