/* nvidia-smi: what its parts share. Every command is one function, and all see the cards through `struct machine`. */
#ifndef SIMGPU_SMI_H
#define SIMGPU_SMI_H

#include <stddef.h>
#include <stdint.h>
#include "reader.h"
#include "slices.h"

enum { EXIT_GOOD = 0, EXIT_BAD_INPUT = 2, EXIT_UNSUPPORTED = 3, EXIT_NO_DEVICES = 6, EXIT_BAD_OPTION = 255 };
enum { CELL = 512, MAX_LINKS = 64, MAX_CLOCKS = 1024 };

/* The cards (machine.c). */

struct gpu { unsigned index; struct page page; };
struct machine {
    struct cards cards;
    unsigned count, attached; /* those to show, of those that are there */
    int lost;                 /* whether one did not answer */
    struct gpu gpu[MAX_CARDS];
};

/* Map the cards and read them; returns the exit code, after an error message. `ids` may be null. */
int machine_open(struct machine *machine, const char *ids);
/* Read the chosen cards anew. */
int machine_read(struct machine *machine, const char *ids);
/* Read one card anew, after a change; returns NVML's code. */
int gpu_refresh(const struct machine *machine, struct gpu *gpu);
/* The processes on a card, until the next call. */
unsigned gpu_processes(const struct gpu *gpu, const struct process **found);
void bus_id(const struct page *page, char *into);
/* How much of its window on the bus an instance uses, in MiB. */
unsigned long long instance_window_used(const struct page *page, const struct instance *instance);
/* The name of a compute instance of a kind, of CELL bytes at most: 3g.71gb, or 1c.3g.71gb for a part of it. */
void compute_name(const struct profile *within, const struct compute *kind, char *into);
int is_cut(const struct page *page);
int machine_any(const struct machine *machine, int (*has)(const struct page *page));
/* The clocks that a card can be set to, highest first; returns their number. */
unsigned supported_clocks(const struct page *page, unsigned *into);
/* Of memory, in MiB: a card's, of which one that is begun counts; and a process's, of which it does not. */
unsigned long long mebibytes(uint64_t bytes);
unsigned long long process_mebibytes(const struct process *process);
const char *compute_mode_name(unsigned mode);

/* What the driver calls an error, by NVML's code. */
const char *code_text(int code);

/* Options (options.c). */

enum takes { NOTHING, VALUE, MAYBE };
enum asker { TOOL, QUERY, SETTING, COMMAND };
struct option { const char *brief, *full; enum takes takes; };
/* Put into `values` what each option was given, "" for one without a value, null for one that is absent. */
int options_read(int count, char **words, enum asker asker, const struct option *options, unsigned many, const char **values);

/* The world outside (outside.c). */

struct tm;
void clock_text(char *into);    /* Sun Nov 15 06:58:51 2026 */
void moment_text(char *into);   /* 2026/11/15 06:58:58.021 */
void local_time(struct tm *into);
void sleep_milliseconds(uint64_t many);
/* Send what is printed to a file; the exit code. */
int print_to(const char *file);

/* Commands. */

void print_table(struct machine *machine);
int print_list(const struct machine *machine);
int print_version(const struct machine *machine);

/* -q; `topics` 0 is everything. */
struct report { int xml; uint32_t topics; };
/* The topics of a list such as MEMORY,POWER, or 0 if there is an unknown one. */
uint32_t report_topics(const char *names);
void print_report(struct machine *machine, struct report report);

struct query; /* one of the --query-... options */
const struct query *query_named(const char *option);
struct query_form { int no_header, no_units; };
int query_form_read(const char *format, struct query_form *form);
/* Print which name is invalid, before any other output. */
int query_check(const struct query *query, const char *names);
void print_query(const struct query *query, struct machine *machine, const char *names, struct query_form form);
void print_query_help(const struct query *query);

int change_settings(struct machine *machine, const char **values);

int run_devices(int count, char **words);   /* dmon */
int run_processes(int count, char **words); /* pmon */
int run_topology(int count, char **words);
int run_links(int count, char **words);
int run_chip_links(int count, char **words); /* c2c */
int run_mig(int count, char **words);
int run_minor(int count, char **words); /* what follows the name of the command */

void print_help(void);
void print_command_help(const char *command);

#endif
