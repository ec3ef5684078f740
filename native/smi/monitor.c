#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "monitor.h"

static const struct option OPTIONS[M_MANY] = {
    {"-i", "--id", VALUE}, {"-d", "--delay", VALUE}, {"-c", "--count", VALUE}, {"-s", "--select", VALUE},
    {"-o", "--options", VALUE}, {"-f", "--filename", VALUE}, {"-h", "--help", NOTHING}, {0, "--format", VALUE},
    {0, "--gpm-metrics", VALUE},
};

static int read_format(struct monitor *monitor, const char *format)
{
    char copy[CELL], *rest = copy, *word;
    snprintf(copy, sizeof copy, "%s", format);
    while ((word = strsep(&rest, ","))) {
        if (!strcmp(word, "csv")) monitor->csv = 1;
        else if (!strcmp(word, "nounit")) monitor->no_units = 1;
        else if (!strcmp(word, "noheader")) monitor->no_header = 1;
        else {
            puts("Format modifier is not recognized.");
            return EXIT_BAD_INPUT;
        }
    }
    return -1;
}

static int explain(const struct monitoring *as)
{
    print_command_help(as->command);
    return EXIT_GOOD;
}

static int read_pace(struct monitor *monitor, const struct monitoring *as)
{
    const char *delay = monitor->values[M_DELAY], *count = monitor->values[M_COUNT];
    long seconds = delay ? atol(delay) : 1;
    monitor->delay_ms = (uint64_t)seconds * 1000;
    monitor->count = count ? atol(count) : 0;
    if (seconds < 1 || seconds > as->longest)
        printf("Collection delay/interval should be between 1 second and %ld seconds\n", as->longest);
    else if (count && monitor->count < 1) puts("Invalid value for number of samples to be displayed");
    else return -1;
    return explain(as);
}

int monitor_open(struct monitor *monitor, const struct monitoring *as, int count, char **words)
{
    int code = options_read(count, words, COMMAND, OPTIONS, as->options, monitor->values);
    if (code || monitor->values[M_HELP]) return explain(as);
    if (monitor->values[M_FORMAT] && (code = read_format(monitor, monitor->values[M_FORMAT])) >= 0) return code;
    if ((code = read_pace(monitor, as)) >= 0) return code;
    const char *columns = monitor->values[M_OPTIONS] ? monitor->values[M_OPTIONS] : "";
    monitor->date = strchr(columns, 'D') != 0;
    monitor->time = strchr(columns, 'T') != 0;
    if ((code = print_to(monitor->values[M_FILE]))) return code;
    code = machine_open(&monitor->machine, monitor->values[M_ID]);
    return code ? code : -1;
}

int monitor_heads(struct monitor *monitor)
{
    enum { SCREEN = 44 };
    int due = !monitor->since_heading || (monitor->since_heading > SCREEN && !monitor->csv);
    if (due) monitor->since_heading = 1;
    return due;
}

static void print_start(const struct monitor *monitor, char mark, const char *date, const char *time, const char *card)
{
    if (monitor->csv) {
        putchar(mark);
        if (monitor->date) printf("%s, ", date);
        if (monitor->time) printf("%s, ", time);
        fputs(card, stdout);
        return;
    }
    putchar(mark);
    if (monitor->date) printf("%-12s", date);
    if (monitor->time) printf("%-13s", time);
    printf("%*s", monitor->date || monitor->time ? 3 : 4, card);
}

void monitor_heading(const struct monitor *monitor, enum heading heading)
{
    if (heading == NAMES) print_start(monitor, '#', "Date", "Time", "gpu");
    else print_start(monitor, '#', "YYYYMMDD", "HH:MM:SS", "Idx");
}

void monitor_card(struct monitor *monitor, const struct gpu *gpu)
{
    char date[32], time[32], card[16];
    struct tm now;
    local_time(&now);
    strftime(date, sizeof date, "%Y%m%d", &now);
    strftime(time, sizeof time, "%H:%M:%S", &now);
    snprintf(card, sizeof card, "%u", gpu->index);
    print_start(monitor, ' ', date, time, card);
    monitor->since_heading++;
}

int monitor_run(struct monitor *monitor, void (*round)(struct monitor *monitor, int first))
{
    for (long row = 0; !monitor->count || row < monitor->count; row++) {
        if (row) {
            sleep_milliseconds(monitor->delay_ms);
            int code = machine_read(&monitor->machine, monitor->values[M_ID]);
            if (code) return code;
        }
        round(monitor, row == 0);
        fflush(stdout);
    }
    return monitor->machine.lost ? READ_LOST : EXIT_GOOD;
}
