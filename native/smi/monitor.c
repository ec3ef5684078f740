#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "monitor.h"

static const struct option OPTIONS[M_MANY] = {
    {"-i", "--id", VALUE}, {"-d", "--delay", VALUE}, {"-c", "--count", VALUE}, {"-s", "--select", VALUE},
    {"-o", "--options", VALUE}, {"-f", "--filename", VALUE}, {"-h", "--help", NOTHING}, {0, "--format", VALUE},
    {0, "--gpm-metrics", VALUE}, {0, "--gpm-options", VALUE},
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

static int read_pace(struct monitor *monitor, const char *command)
{
    const char *delay = monitor->values[M_DELAY], *count = monitor->values[M_COUNT];
    monitor->delay_ms = 1000;
    if (delay && atol(delay) > 0) monitor->delay_ms = (uint64_t)atol(delay) * 1000;
    monitor->count = count ? atol(count) : 0;
    if (!count || monitor->count > 0) return -1;
    puts("Invalid value for number of samples to be displayed");
    print_command_help(command);
    return EXIT_GOOD;
}

int monitor_open(struct monitor *monitor, const char *command, int count, char **words)
{
    int code = options_read(count, words, OPTIONS, M_MANY, monitor->values);
    if (code) return code;
    if (monitor->values[M_HELP]) {
        print_command_help(command);
        return EXIT_GOOD;
    }
    if (monitor->values[M_FORMAT] && (code = read_format(monitor, monitor->values[M_FORMAT])) >= 0) return code;
    if ((code = read_pace(monitor, command)) >= 0) return code;
    const char *columns = monitor->values[M_OPTIONS] ? monitor->values[M_OPTIONS] : "";
    monitor->date = strchr(columns, 'D') != 0;
    monitor->time = strchr(columns, 'T') != 0;
    if (monitor->values[M_FILE] && !freopen(monitor->values[M_FILE], "w", stdout)) return EXIT_BAD_INPUT;
    code = machine_open(&monitor->machine, monitor->values[M_ID]);
    return code ? code : -1;
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

void monitor_card(const struct monitor *monitor, const struct gpu *gpu)
{
    char date[32], time[32], card[16];
    struct tm now;
    local_time(&now);
    strftime(date, sizeof date, "%Y%m%d", &now);
    strftime(time, sizeof time, "%H:%M:%S", &now);
    snprintf(card, sizeof card, "%u", gpu->index);
    print_start(monitor, ' ', date, time, card);
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
