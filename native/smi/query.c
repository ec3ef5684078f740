/* The --query-... options: comma-separated lines, one for each card, process, clock or cause. */
#include <stdio.h>
#include <string.h>
#include "fields.h"

struct rows;
struct query {
    const char *option;
    const struct field *fields;
    const unsigned *count;
    void (*each)(struct subject *of, struct rows *rows); /* calls print_row for each line of a card */
    const char *about;
};
struct rows { const struct field *columns[1024]; unsigned count; struct query_form form; };

#define CARD {"timestamp", 0, 0, COMPUTED(v_timestamp), "when the line was made"}, \
    {"gpu_name", 0, 0, TEXT(product), "name of the product"}, \
    {"gpu_bus_id", 0, 0, COMPUTED(v_bus_id), "place on the PCI bus"}, \
    {"gpu_serial", 0, 0, TEXT(serial), "serial number of the board"}, \
    {"gpu_uuid", 0, 0, TEXT(uuid), "identifier of the GPU"}
#define COUNTED(table) static const unsigned table##_COUNT = sizeof table / sizeof *table

static const struct field APP_FIELDS[] = {
    CARD,
    {"pid", 0, 0, COMPUTED(v_pid), "process"},
    {"process_name", "name", 0, COMPUTED(v_process_name), "its program"},
    {"used_gpu_memory", "used_memory", "MiB", COMPUTED(v_process_memory), "memory that it has on the GPU"},
};
COUNTED(APP_FIELDS);

static const struct field ACCOUNTED_FIELDS[] = {
    CARD,
    {"vgpu_instance", 0, 0, CONSTANT("N/A"), "virtual GPU that it ran on"},
    {"pid", 0, 0, COMPUTED(v_account_pid), "process"},
    {"gpu_utilization", "gpu_util", "%", COMPUTED(v_account_usage), "share of its time with a kernel running"},
    {"mem_utilization", "mem_util", "%", COMPUTED(v_account_memory_usage), "share of its time with memory read or written"},
    {"max_memory_usage", 0, "MiB", COMPUTED(v_account_memory), "most memory that it had"},
    {"time", 0, "ms", COMPUTED(v_account_time), "how long it ran; 0 while it runs"},
};
COUNTED(ACCOUNTED_FIELDS);

static const struct field REMAPPED_FIELDS[] = {
    CARD,
    {"remapped_rows.correctable", 0, 0, {remap_constant, 0, "0"}, "rows replaced after correctable errors"},
    {"remapped_rows.uncorrectable", 0, 0, {remap_constant, 0, "0"}, "rows replaced after uncorrectable errors"},
    {"remapped_rows.pending", 0, 0, {remap_constant, 0, "No"}, "whether rows wait to be replaced"},
    {"remapped_rows.failure", 0, 0, {remap_constant, 0, "No"}, "whether replacing failed"},
};
COUNTED(REMAPPED_FIELDS);

static const struct field RETIRED_FIELDS[] = {
    CARD,
    {"retired_pages.address", 0, 0, NONE, "address of a retired page"},
    {"retired_pages.timestamp", 0, 0, NONE, "when it was retired"},
    {"retired_pages.cause", 0, 0, COMPUTED(v_cause), "why"},
};
COUNTED(RETIRED_FIELDS);

static const struct field CLOCK_FIELDS[] = {
    CARD,
    {"memory", "mem", "MHz", COMPUTED(v_memory_clock), "memory clock"},
    {"graphics", "gr", "MHz", COMPUTED(v_clock), "graphics clock that goes with it"},
};
COUNTED(CLOCK_FIELDS);

static void print_cell(const struct subject *of, const struct field *field, struct query_form form)
{
    char cell[CELL];
    enum known known = field->value.read(of, &field->value, cell);
    if (known != KNOWN) {
        fputs(known == DEPRECATED ? "[Requested functionality has been deprecated]" : "[N/A]", stdout);
        return;
    }
    int prefixed = field->unit && !strcmp(field->unit, HEX);
    printf("%s%s", prefixed ? HEX : "", cell);
    if (field->unit && !prefixed && !form.no_units) printf(" %s", field->unit);
}

static void print_row(const struct subject *of, struct rows *rows)
{
    for (unsigned i = 0; i < rows->count; i++) {
        if (i) fputs(", ", stdout);
        print_cell(of, rows->columns[i], rows->form);
    }
    putchar('\n');
}

static void each_card(struct subject *of, struct rows *rows) { print_row(of, rows); }

static void each_accounted(struct subject *of, struct rows *rows)
{
    const struct page *page = &of->gpu->page;
    for (unsigned i = 0; i < account_count(page); i++) {
        of->account = &page->accounts[i];
        print_row(of, rows);
    }
}

static void each_process(struct subject *of, struct rows *rows)
{
    const struct process *processes = 0;
    unsigned many = gpu_processes(of->gpu, &processes);
    for (unsigned i = 0; i < many; i++) {
        of->process = &processes[i];
        print_row(of, rows);
    }
}

static void each_cause(struct subject *of, struct rows *rows)
{
    static const char *const CAUSES[] = {"Single Bit ECC", "Double Bit ECC"};
    for (unsigned i = 0; i < 2; i++) {
        of->cause = CAUSES[i];
        print_row(of, rows);
    }
}

static void each_clock(struct subject *of, struct rows *rows)
{
    unsigned clocks[MAX_CLOCKS], many = supported_clocks(&of->gpu->page, clocks);
    for (unsigned i = 0; memory_clock_at(&of->gpu->page, i); i++)
        for (unsigned j = 0; j < many; j++) {
            of->memory_clock = memory_clock_at(&of->gpu->page, i);
            of->clock = clocks[j];
            print_row(of, rows);
        }
}

static const struct query QUERIES[] = {
    {"--query-gpu", GPU_FIELDS, &GPU_FIELD_COUNT, each_card, "what GPUs are and do"},
    {"--query-compute-apps", APP_FIELDS, &APP_FIELDS_COUNT, each_process, "processes that use GPUs"},
    {"--query-accounted-apps", ACCOUNTED_FIELDS, &ACCOUNTED_FIELDS_COUNT, each_accounted, "processes that used GPUs"},
    {"--query-supported-clocks", CLOCK_FIELDS, &CLOCK_FIELDS_COUNT, each_clock, "clocks that can be set"},
    {"--query-retired-pages", RETIRED_FIELDS, &RETIRED_FIELDS_COUNT, each_cause, "memory pages taken out of use"},
    {"--query-remapped-rows", REMAPPED_FIELDS, &REMAPPED_FIELDS_COUNT, each_card, "memory rows that were replaced"},
};

const struct query *query_named(const char *option)
{
    for (size_t i = 0; i < sizeof QUERIES / sizeof *QUERIES; i++)
        if (!strcmp(option, QUERIES[i].option)) return &QUERIES[i];
    return 0;
}

int query_form_read(const char *format, struct query_form *form)
{
    char copy[CELL], *rest = copy, *word;
    snprintf(copy, sizeof copy, "%s", format);
    while ((word = strsep(&rest, ","))) {
        if (!strcmp(word, "noheader")) form->no_header = 1;
        else if (!strcmp(word, "nounits")) form->no_units = 1;
        else if (*word && strcmp(word, "csv")) {
            puts("Format modifier is not recognized.");
            return EXIT_BAD_INPUT;
        }
    }
    return EXIT_GOOD;
}

static const struct field *find(const struct query *query, const char *name)
{
    for (unsigned i = 0; i < *query->count; i++) {
        const struct field *field = &query->fields[i];
        if (!strcmp(name, field->name) || (field->alias && !strcmp(name, field->alias))) return field;
    }
    return 0;
}

/* The columns that were asked for; the name of the first that there is none of, or null. */
static const char *choose(const struct query *query, const char *names, struct rows *rows)
{
    static char copy[65536];
    char *rest = copy, *name;
    snprintf(copy, sizeof copy, "%s", names);
    rows->count = 0;
    while ((name = strsep(&rest, ","))) {
        while (*name == ' ') name++;
        const struct field *field = find(query, name);
        if (*name && !field) return name;
        if (field && rows->count < sizeof rows->columns / sizeof *rows->columns) rows->columns[rows->count++] = field;
    }
    return 0;
}

int query_check(const struct query *query, const char *names)
{
    static struct rows rows;
    const char *unknown = choose(query, names, &rows);
    if (!unknown) return EXIT_GOOD;
    printf("Field \"%s\" is not a valid field to query.\n\n", unknown);
    return EXIT_BAD_INPUT;
}

static void print_header(const struct rows *rows)
{
    for (unsigned i = 0; i < rows->count; i++) {
        const struct field *field = rows->columns[i];
        printf("%s%s", i ? ", " : "", field->name);
        if (field->unit && strcmp(field->unit, HEX)) printf(" [%s]", field->unit);
    }
    putchar('\n');
}

void print_query(const struct query *query, struct machine *machine, const char *names, struct query_form form)
{
    static struct rows rows;
    rows.form = form;
    choose(query, names, &rows);
    if (!form.no_header) print_header(&rows);
    for (unsigned i = 0; i < machine->count; i++) {
        struct subject of = {.machine = machine, .gpu = &machine->gpu[i]};
        query->each(&of, &rows);
    }
}

void print_query_help(const struct query *query)
{
    printf("Columns of %s: %s. Name them with commas between; --format=csv[,noheader][,nounits] shapes the lines.\n",
           query->option, query->about);
    for (unsigned i = 0; i < *query->count; i++) {
        const struct field *field = &query->fields[i];
        printf("\n\"%s\"", field->name);
        if (field->alias) printf(" or \"%s\"", field->alias);
        printf("\n%c%s.\n", field->about[0] >= 'a' && field->about[0] <= 'z' ? field->about[0] - 32 : field->about[0], field->about + 1);
    }
}
