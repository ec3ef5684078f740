/* nvidia-smi for simulated cards: reads the options and calls the part that they select. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "main.h"
#include "smi.h"

static const struct option OPTIONS[O_MANY] = {
    [O_HELP] = {"-h", "--help", NOTHING},
    [O_VERSION] = {0, "--version", NOTHING},
    [O_LIST] = {"-L", "--list-gpus", NOTHING},
    [O_EXCLUDED] = {"-B", "--list-excluded-gpus", NOTHING},
    [O_QUERY] = {"-q", "--query", NOTHING},
    [O_XML] = {"-x", "--xml-format", NOTHING},
    [O_DISPLAY] = {"-d", "--display", VALUE},
    [O_ID] = {"-i", "--id", VALUE},
    [O_FILE] = {"-f", "--filename", VALUE},
    [O_LOOP] = {"-l", "--loop", MAYBE},
    [O_LOOP_MS] = {"-lms", "--loop-ms", VALUE},
    [O_FORMAT] = {0, "--format", VALUE},
    [O_QUERY_GPU] = {0, "--query-gpu", VALUE},
    [O_QUERY_APPS] = {0, "--query-compute-apps", VALUE},
    [O_QUERY_ACCOUNTED] = {0, "--query-accounted-apps", VALUE},
    [O_QUERY_CLOCKS] = {0, "--query-supported-clocks", VALUE},
    [O_QUERY_RETIRED] = {0, "--query-retired-pages", VALUE},
    [O_QUERY_REMAPPED] = {0, "--query-remapped-rows", VALUE},
    [O_HELP_GPU] = {0, "--help-query-gpu", NOTHING},
    [O_HELP_APPS] = {0, "--help-query-compute-apps", NOTHING},
    [O_HELP_ACCOUNTED] = {0, "--help-query-accounted-apps", NOTHING},
    [O_HELP_CLOCKS] = {0, "--help-query-supported-clocks", NOTHING},
    [O_HELP_RETIRED] = {0, "--help-query-retired-pages", NOTHING},
    [O_HELP_REMAPPED] = {0, "--help-query-remapped-rows", NOTHING},
    [O_POWER_LIMIT] = {"-pl", "--power-limit", VALUE},
    [O_LOCK_CLOCKS] = {"-lgc", "--lock-gpu-clocks", VALUE},
    [O_RESET_CLOCKS] = {"-rgc", "--reset-gpu-clocks", NOTHING},
    [O_APPLICATIONS_CLOCKS] = {"-ac", "--applications-clocks", VALUE},
    [O_RESET_APPLICATIONS_CLOCKS] = {"-rac", "--reset-applications-clocks", NOTHING},
    [O_PERSISTENCE] = {"-pm", "--persistence-mode", VALUE},
    [O_COMPUTE_MODE] = {"-c", "--compute-mode", VALUE},
    [O_MIG] = {"-mig", "--multi-instance-gpu", VALUE},
    [O_ECC] = {"-e", "--ecc-config", VALUE},
    [O_CLEAR_ECC] = {"-p", "--reset-ecc-errors", VALUE},
    [O_ACCOUNTING] = {"-am", "--accounting-mode", VALUE},
    [O_CLEAR_ACCOUNTED] = {"-caa", "--clear-accounted-apps", NOTHING},
    [O_MEMORY_CLOCKS] = {"-lmc", "--lock-memory-clocks", VALUE},
    [O_RESET_MEMORY_CLOCKS] = {"-rmc", "--reset-memory-clocks", NOTHING},
    [O_TARGET_TEMPERATURE] = {"-gtt", "--gpu-target-temp", VALUE},
    [O_RESET] = {"-r", "--gpu-reset", MAYBE},
    [O_DTD] = {0, "--dtd", NOTHING},
    [O_DEBUG] = {"-debug", "--debug", MAYBE}, /* there is no driver that could log anything */
};

static const struct { const char *name; int (*run)(int count, char **words); } COMMANDS[] = {
    {"dmon", run_devices}, {"pmon", run_processes}, {"topo", run_topology},
    {"nvlink", run_links}, {"c2c", run_chip_links}, {"mig", run_mig},
    {"vgpu", run_minor}, {"power-hint", run_minor}, {"conf-compute", run_minor}, {"boost-slider", run_minor},
    {"compute-policy", run_minor}, {"clocks", run_minor},
};

/* What is printed in every round of a loop. */
struct request {
    const char *ids;
    const struct query *query;
    const char *names;
    struct query_form form;
    int details;
    struct report report;
    uint64_t pause_ms; /* 0: once */
};

static int end_with(const char *words, int code)
{
    puts(words);
    return code;
}

static const struct query *query_of(const char **values, int first, const char **given)
{
    for (int i = first; i < first + 6; i++)
        if (values[i]) {
            *given = values[i];
            return query_named(OPTIONS[O_QUERY_GPU + i - first].full);
        }
    return 0;
}

static int read_request(const char **values, struct request *request)
{
    request->ids = values[O_ID];
    request->query = query_of(values, O_QUERY_GPU, &request->names);
    if (request->query && values[O_FORMAT]) {
        int code = query_form_read(values[O_FORMAT], &request->form);
        if (code) return code;
    }
    if (!request->query && values[O_FORMAT]) {
        printf("ERROR: Option --format=%s is not recognized. Please run 'nvidia-smi -h'.\n\n", values[O_FORMAT]);
        return EXIT_BAD_OPTION;
    }
    request->details = values[O_QUERY] != 0;
    request->report.xml = values[O_XML] != 0;
    if (request->report.xml && !request->details)
        return end_with("Invalid combination of input arguments. Specify -q/--query and -x/--xml-format to run an XML query.  "
                   "Please run 'nvidia-smi -h' for help.\n", EXIT_BAD_INPUT);
    if (values[O_DISPLAY] && !request->details)
        return end_with("Invalid combination of input arguments. Specify -q/--query and -d/--display to run a filtered query.  "
                   "Please run 'nvidia-smi -h' for help.\n", EXIT_BAD_INPUT);
    if (values[O_DTD] && request->details && !request->report.xml)
        return end_with("Invalid combination of input arguments: Specify -x/--xml-format with the -q/--query and --dtd flags to embed DTD.",
                   EXIT_BAD_INPUT);
    if (values[O_DTD] && !request->details) return end_with("There is no DTD for the XML of simulated GPUs.", EXIT_UNSUPPORTED);
    if (values[O_DISPLAY] && request->report.xml)
        return end_with("Invalid combination of input arguments: --display/-d flags can not be combined with -x/--xml-format flags.",
                   EXIT_BAD_INPUT);
    if (values[O_DISPLAY] && !(request->report.topics = report_topics(values[O_DISPLAY])))
        return end_with("Failed to parse --display/-d flags", EXIT_BAD_INPUT);
    long seconds = values[O_LOOP] ? atol(values[O_LOOP]) : 0, milliseconds = values[O_LOOP_MS] ? atol(values[O_LOOP_MS]) : 0;
    if (values[O_LOOP]) request->pause_ms = seconds > 0 ? (uint64_t)seconds * 1000 : 5000;
    if (values[O_LOOP_MS]) request->pause_ms = milliseconds > 0 ? (uint64_t)milliseconds : 1;
    return request->query ? query_check(request->query, request->names) : EXIT_GOOD;
}

static void print_round(struct machine *machine, struct request *request)
{
    if (request->query) print_query(request->query, machine, request->names, request->form);
    else if (request->details) print_report(machine, request->report);
    else print_table(machine);
    request->form.no_header = 1; /* a header is for the first round only */
    fflush(stdout);
}

static int answer(struct machine *machine, struct request *request)
{
    for (;;) {
        print_round(machine, request);
        if (!request->pause_ms) return machine->lost ? READ_LOST : EXIT_GOOD;
        sleep_milliseconds(request->pause_ms);
        int code = machine_read(machine, request->ids);
        if (code) return code;
    }
}

static int is_setter(const char **values)
{
    for (int i = O_POWER_LIMIT; i <= O_RESET; i++)
        if (values[i]) return 1;
    return 0;
}

static int run(const char **values)
{
    static struct machine machine;
    struct request request = {0};
    const char *none;
    const struct query *help = query_of(values, O_HELP_GPU, &none);
    if (values[O_HELP]) print_help();
    else if (help) print_query_help(help);
    if (values[O_HELP] || help) return EXIT_GOOD;
    int code = read_request(values, &request);
    if (code) return code;
    if ((code = print_to(values[O_FILE]))) return code;
    if ((code = machine_open(&machine, values[O_ID]))) return code;
    if (values[O_VERSION]) return print_version(&machine);
    if (values[O_LIST]) return print_list(&machine);
    if (values[O_EXCLUDED]) return end_with("No excluded devices found.", EXIT_GOOD);
    if (is_setter(values)) return change_settings(&machine, values);
    return answer(&machine, &request);
}

/* A list takes no other option. */
static int check_list(int count, char **words)
{
    for (int i = 1; i < count; i++)
        if (strcmp(words[i], OPTIONS[O_LIST].brief) && strcmp(words[i], OPTIONS[O_LIST].full)) {
            printf("ERROR: Option %s is not valid for this command. Please run 'nvidia-smi -h' for help.\n\n", words[i]);
            return EXIT_BAD_INPUT;
        }
    return EXIT_GOOD;
}

/* Who complains about a wrong word: the first kind of request that the others show. */
static enum asker asker_of(int count, char **words)
{
    if (count > 1 && !strncmp(words[1], "--query-", 8)) return QUERY;
    for (int i = 1; i < count; i++)
        for (int j = O_POWER_LIMIT; j <= O_RESET; j++)
            if (!strcmp(words[i], OPTIONS[j].brief) || !strcmp(words[i], OPTIONS[j].full)) return SETTING;
    return TOOL;
}

int main(int count, char **words)
{
    const char *values[O_MANY];
    for (size_t i = 0; count > 1 && i < sizeof COMMANDS / sizeof *COMMANDS; i++)
        if (!strcmp(words[1], COMMANDS[i].name)) return COMMANDS[i].run(count - 2, words + 2);
    int code = options_read(count - 1, words + 1, asker_of(count, words), OPTIONS, O_MANY, values);
    if (!code && values[O_LIST]) code = check_list(count, words);
    return code ? code : run(values);
}
