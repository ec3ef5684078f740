/* The world outside: the time of day, waiting, and where output goes. */
#include <stdio.h>
#include <time.h>
#include <unistd.h>
#include "smi.h"

void local_time(struct tm *into)
{
    time_t now = time(NULL);
    localtime_r(&now, into);
}

void clock_text(char *into)
{
    struct tm now;
    local_time(&now);
    strftime(into, CELL, "%a %b %e %H:%M:%S %Y", &now);
}

void moment_text(char *into)
{
    struct timespec now;
    struct tm parts;
    clock_gettime(CLOCK_REALTIME, &now);
    localtime_r(&now.tv_sec, &parts);
    size_t end = strftime(into, CELL, "%Y/%m/%d %H:%M:%S", &parts);
    snprintf(into + end, CELL - end, ".%03ld", now.tv_nsec / 1000000);
}

int print_to(const char *file)
{
    FILE *opened = file ? fopen(file, "w") : 0;
    if (!file) return EXIT_GOOD;
    if (!opened) {
        printf("Failed to create the log file %s\n\n", file);
        return EXIT_BAD_OPTION;
    }
    fflush(stdout);
    int code = dup2(fileno(opened), STDOUT_FILENO) < 0 ? EXIT_BAD_OPTION : EXIT_GOOD;
    fclose(opened);
    return code;
}

void sleep_milliseconds(uint64_t many)
{
    struct timespec left = {(time_t)(many / 1000), (long)(many % 1000) * 1000000};
    nanosleep(&left, NULL);
}
