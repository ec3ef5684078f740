/* Writes the lines of -q, as text or as XML. */
#include <string.h>
#include "rows.h"

enum { LABEL = 55, INDENT = 4, NESTED = 8 };

static const struct { const char *name; uint32_t topic; } TOPICS[] = {
    {"MEMORY", MEMORY}, {"UTILIZATION", UTILIZATION}, {"ECC", ECC}, {"TEMPERATURE", TEMPERATURE}, {"POWER", POWER},
    {"CLOCK", CLOCK}, {"COMPUTE", COMPUTE}, {"PIDS", PIDS}, {"PERFORMANCE", PERFORMANCE},
    {"SUPPORTED_CLOCKS", SUPPORTED_CLOCKS}, {"PAGE_RETIREMENT", PAGE_RETIREMENT}, {"ACCOUNTING", ACCOUNTING},
    {"ENCODER_STATS", ENCODER_STATS}, {"SUPPORTED_GPU_TARGET_TEMP", TARGET_TEMPERATURE}, {"VOLTAGE", VOLTAGE},
    {"FBC_STATS", FBC_STATS}, {"ROW_REMAPPER", ROW_REMAPPER}, {"GSP_FIRMWARE_VERSION", GSP_FIRMWARE},
    {"POWER_SMOOTHING", POWER_SMOOTHING}, {"POWER_PROFILES", POWER_PROFILES},
};

static uint32_t topic_named(const char *name)
{
    for (size_t i = 0; i < sizeof TOPICS / sizeof *TOPICS; i++)
        if (!strcasecmp(name, TOPICS[i].name)) return TOPICS[i].topic;
    return 0;
}

uint32_t report_topics(const char *names)
{
    char copy[1024], *rest = copy, *name;
    uint32_t found = 0;
    snprintf(copy, sizeof copy, "%s", names);
    while ((name = strsep(&rest, ","))) {
        uint32_t topic = topic_named(name);
        if (!topic) return 0;
        found |= topic;
    }
    return found;
}

/* In XML a card's lines are two tabs deep; in text, four spaces. */
static void indent(const struct writer *to)
{
    for (unsigned i = 0; i < (to->xml ? to->depth + 2 : (to->depth + 1) * INDENT); i++) putchar(to->xml ? '\t' : ' ');
}

static void put_escaped(const char *text)
{
    for (; *text; text++)
        if (*text == '&') fputs("&amp;", stdout);
        else if (*text == '<') fputs("&lt;", stdout);
        else if (*text == '>') fputs("&gt;", stdout);
        else putchar(*text);
}

void write_group(struct writer *to, const char *label, const char *tag)
{
    indent(to);
    if (to->xml) printf("<%s>\n", tag);
    else puts(label);
    to->depth++;
}

void write_end(struct writer *to, const char *tag)
{
    to->depth--;
    if (!to->xml) return;
    indent(to);
    printf("</%s>\n", tag);
}

void write_line(struct writer *to, const char *label, const char *tag, const char *text)
{
    if (to->xml ? !tag : !label) return;
    indent(to);
    if (!to->xml) {
        printf("%-*s: %s\n", (int)(LABEL - (to->depth + 1) * INDENT), label, text);
        return;
    }
    printf("<%s>", tag);
    put_escaped(text);
    printf("</%s>\n", tag);
}

void write_number(struct writer *to, const char *label, const char *tag, unsigned long long number, const char *unit)
{
    char text[64];
    snprintf(text, sizeof text, "%llu%s", number, unit);
    write_line(to, label, tag, text);
}

static void write_value(struct writer *to, const struct subject *of, const struct row *row)
{
    char cell[CELL], text[CELL + 32];
    enum known known = row->value.read(of, &row->value, cell);
    int prefixed = row->unit && !strcmp(row->unit, HEX);
    if (known == KNOWN)
        snprintf(text, sizeof text, "%s%s%s", prefixed && !to->xml ? HEX : "", cell, row->unit && !prefixed ? row->unit : "");
    write_line(to, row->label, row->tag,
               known == KNOWN ? text : known == DEPRECATED ? "Requested functionality has been deprecated" : "N/A");
}

static int is_available(const struct subject *of, const struct row *row)
{
    char cell[CELL];
    return !row->value.read || row->value.read(of, &row->value, cell) == KNOWN;
}

static int is_shown(const struct row *row, const struct report *report, const struct page *page)
{
    if (report->xml ? !row->tag : !row->label) return 0;
    if (row->when && !row->when(page)) return 0;
    if (row->depth || report->xml) return 1;
    return report->topics ? (report->topics & row->topics) != 0 : !row->asked;
}

static void write_rows(const struct report *report, const struct subject *of)
{
    struct writer to = {report->xml, 0};
    const char *open[NESTED];
    for (unsigned i = 0; i < ROW_COUNT; i++) {
        const struct row *row = &ROWS[i];
        while (to.depth > row->depth) write_end(&to, open[to.depth - 1]);
        int shown = is_shown(row, report, &of->gpu->page);
        if (shown && row->list) row->list(&to, of);
        else if (shown && row->group && is_available(of, row)) {
            open[to.depth] = row->tag;
            write_group(&to, row->label, row->tag);
            continue;
        } else if (shown) write_value(&to, of, row);
        if (row->group)
            while (i + 1 < ROW_COUNT && ROWS[i + 1].depth > row->depth) i++;
    }
    while (to.depth) write_end(&to, open[to.depth - 1]);
}

static void print_text(struct machine *machine, const struct report *report)
{
    const struct page *page = &machine->gpu[0].page;
    char now[CELL];
    clock_text(now);
    puts("\n==============NVSMI LOG==============\n");
    printf("%-*s: %s\n%-*s: %s\n%-*s: %u.%u\n\n%-*s: %u\n", LABEL, "Timestamp", now, LABEL, "Driver Version", page->driver,
           LABEL, "CUDA Version", page->cuda / 1000, page->cuda % 1000 / 10, LABEL, "Attached GPUs", machine->attached);
    for (unsigned i = 0; i < machine->count; i++) {
        struct subject of = {.machine = machine, .gpu = &machine->gpu[i]};
        bus_id(&machine->gpu[i].page, now);
        printf("GPU %s\n", now);
        write_rows(report, &of);
        putchar('\n');
    }
}

static void print_xml(struct machine *machine, const struct report *report)
{
    const struct page *page = &machine->gpu[0].page;
    char now[CELL];
    clock_text(now);
    puts("<?xml version=\"1.0\" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM \"nvsmi_device_v13.dtd\">\n<nvidia_smi_log>");
    printf("\t<timestamp>%s</timestamp>\n\t<driver_version>", now);
    put_escaped(page->driver);
    printf("</driver_version>\n\t<cuda_version>%u.%u</cuda_version>\n\t<attached_gpus>%u</attached_gpus>\n", page->cuda / 1000,
           page->cuda % 1000 / 10, machine->attached);
    for (unsigned i = 0; i < machine->count; i++) {
        struct subject of = {.machine = machine, .gpu = &machine->gpu[i]};
        bus_id(&machine->gpu[i].page, now);
        printf("\t<gpu id=\"%s\">\n", now);
        write_rows(report, &of);
        puts("\t</gpu>\n");
    }
    puts("</nvidia_smi_log>");
}

void print_report(struct machine *machine, struct report report)
{
    if (report.xml) print_xml(machine, &report);
    else print_text(machine, &report);
}
