/* topo, nvlink and c2c: how cards reach each other. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "smi.h"

static struct machine machine;

/* topo */

enum { T_MATRIX, T_PCI, T_P2P, T_CPU, T_ID, T_HELP, T_MANY };
static const struct option TOPOLOGY[T_MANY] = {
    {"-m", "--matrix", NOTHING}, {"-mp", "--matrix_pci", NOTHING}, {"-p2p", "--p2pstatus", VALUE}, {"-c", "--cpu", VALUE},
    {"-i", "--id", VALUE}, {"-h", "--help", NOTHING},
};
static const char UNDERLINED[] = "\x1b[4m", PLAIN[] = "\x1b[0m";

static int are_linked(const struct page *a, const struct page *b) { return a->links && b->links; }

static void print_path(const struct page *a, const struct page *b, int only_pci)
{
    if (are_linked(a, b) && !only_pci) printf("NV%u\t", a->links < b->links ? a->links : b->links);
    else printf("%s\t", a->numa == b->numa ? "NODE" : "SYS");
}

static void print_affinity(const struct page *page)
{
    if (page->cpus > 1) printf("%u-%u\t", page->first_cpu, page->first_cpu + page->cpus - 1);
    else printf("%u\t", page->first_cpu);
    if (page->numa < 0) puts("N/A\t\tN/A");
    else printf("%d\t\tN/A\n", page->numa);
}

static void print_matrix(int only_pci)
{
    printf("\t%s", UNDERLINED);
    for (unsigned i = 0; i < machine.count; i++) printf("GPU%u\t", machine.gpu[i].index);
    printf("CPU Affinity\tNUMA Affinity\tGPU NUMA ID%s\n", PLAIN);
    for (unsigned i = 0; i < machine.count; i++) {
        printf("GPU%u\t", machine.gpu[i].index);
        for (unsigned j = 0; j < machine.count; j++)
            if (i == j) fputs(" X \t", stdout);
            else print_path(&machine.gpu[i].page, &machine.gpu[j].page, only_pci);
        print_affinity(&machine.gpu[i].page);
    }
    puts("\nLegend:\n\n"
         "  X    = Self\n"
         "  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)\n"
         "  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node\n"
         "  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)\n"
         "  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)\n"
         "  PIX  = Connection traversing at most a single PCIe bridge");
    if (!only_pci) puts("  NV#  = Connection traversing a bonded set of # NVLinks");
}

static void print_peers(char capability)
{
    int needs_link = capability == 'n' || capability == 'a';
    printf(" \t%s", UNDERLINED);
    for (unsigned i = 0; i < machine.count; i++) printf("GPU%u\t", machine.gpu[i].index);
    printf("%s\n", PLAIN);
    for (unsigned i = 0; i < machine.count; i++) {
        printf(" GPU%u\t", machine.gpu[i].index);
        for (unsigned j = 0; j < machine.count; j++) {
            int works = !needs_link || are_linked(&machine.gpu[i].page, &machine.gpu[j].page);
            printf("%s\t", i == j ? "X" : works ? "OK" : "NS");
        }
        putchar('\n');
    }
    puts("\nLegend:\n\n  X    = Self\n  OK   = Status Ok\n  CNS  = Chipset not supported\n  GNS  = GPU not supported\n"
         "  TNS  = Topology not supported\n  NS   = Not supported\n  U    = Unknown");
}

static void print_near(unsigned long cpu)
{
    const char *before = "";
    printf("The GPUs that have an affinity with CPU %lu are:\n", cpu);
    for (unsigned i = 0; i < machine.count; i++) {
        const struct page *page = &machine.gpu[i].page;
        if (cpu < page->first_cpu || cpu - page->first_cpu >= page->cpus) continue;
        printf("%s%u", before, machine.gpu[i].index);
        before = ", ";
    }
    puts("\n");
}

int run_topology(int count, char **words)
{
    const char *values[T_MANY];
    int code = options_read(count, words, COMMAND, TOPOLOGY, T_MANY, values);
    if (code) return code;
    const char *peers = values[T_P2P];
    if (values[T_HELP] || !(peers || values[T_MATRIX] || values[T_PCI] || values[T_CPU])) {
        print_command_help("topo");
        return EXIT_GOOD;
    }
    if (values[T_ID]) {
        puts("The -i command line argument must be used in conjunction with -n or -p.\n");
        return EXIT_BAD_OPTION;
    }
    if (peers && (strlen(peers) != 1 || !strchr("rwnap", *peers))) {
        puts("Invalid p2p capability index specified at the command-line");
        return EXIT_BAD_INPUT;
    }
    if ((code = machine_open(&machine, 0))) return code;
    if (peers) print_peers(*peers);
    else if (values[T_CPU]) print_near(strtoul(values[T_CPU], 0, 10));
    else print_matrix(!values[T_MATRIX]);
    return EXIT_GOOD;
}

/* nvlink */

enum { N_STATUS, N_CAPABILITIES, N_ERRORS, N_THROUGHPUT, N_ID, N_LINK, N_HELP, N_MANY };
static const struct option LINKS[N_MANY] = {
    {"-s", "--status", NOTHING}, {"-c", "--capabilities", NOTHING}, {"-e", "--errorcounters", NOTHING},
    {"-gt", "--getthroughput", VALUE}, {"-i", "--id", VALUE}, {"-l", "--link", VALUE}, {"-h", "--help", NOTHING},
};

static void print_lines(const char *const *lines, unsigned many, char mark, unsigned link)
{
    for (unsigned i = 0; i < many; i++) printf("\t Link %u%c %s\n", link, mark, lines[i]);
}

static void print_link(const struct page *page, unsigned link, const char **values)
{
    static const char *const CAPABILITIES[] = {
        "P2P is supported: true", "Access to system memory supported: true", "P2P atomics supported: true",
        "System memory atomics supported: true", "SLI is supported: true", "Link is supported: true",
    };
    static const char *const ERRORS[] = {"Replay Errors: 0", "Recovery Errors: 0", "CRC Errors: 0"};
    unsigned long long each = (unsigned long long)page->link_bytes / 2 / page->links / 1024;
    if (values[N_STATUS]) printf("\t Link %u: %u.%03u GB/s\n", link, page->link_mbps / 1000, page->link_mbps % 1000);
    if (values[N_CAPABILITIES]) print_lines(CAPABILITIES, 6, ',', link);
    if (values[N_ERRORS]) {
        print_lines(ERRORS, 3, ':', link);
        putchar('\n');
    }
    if (values[N_THROUGHPUT]) printf("\t Link %u: Data Tx: %llu KiB\n\t Link %u: Data Rx: %llu KiB\n", link, each, link, each);
}

static void print_links(const struct gpu *gpu, const char **values)
{
    const struct page *page = &gpu->page;
    if (!page->links) return;
    printf("GPU %u: %s (UUID: %s)\n", gpu->index, page->product, page->uuid);
    for (unsigned link = 0; link < page->links; link++)
        if (!values[N_LINK] || strtoul(values[N_LINK], 0, 10) == link) print_link(page, link, values);
}

int run_links(int count, char **words)
{
    const char *values[N_MANY];
    int code = options_read(count, words, COMMAND, LINKS, N_MANY, values);
    if (code) return code;
    if (values[N_HELP] || !(values[N_STATUS] || values[N_CAPABILITIES] || values[N_ERRORS] || values[N_THROUGHPUT])) {
        print_command_help("nvlink");
        return EXIT_GOOD;
    }
    if ((code = machine_open(&machine, values[N_ID]))) return code;
    for (unsigned i = 0; i < machine.count; i++) print_links(&machine.gpu[i], values);
    return EXIT_GOOD;
}

/* c2c */

enum { C_STATUS, C_ID, C_HELP, C_MANY };
static const struct option CHIPS[C_MANY] = {{"-s", "--status", NOTHING}, {"-i", "--id", VALUE}, {"-h", "--help", NOTHING}};

int run_chip_links(int count, char **words)
{
    const char *values[C_MANY];
    int code = options_read(count, words, COMMAND, CHIPS, C_MANY, values), found = 0;
    if (code) return code;
    if (!values[C_STATUS] || values[C_HELP]) {
        print_command_help("c2c");
        return EXIT_GOOD;
    }
    if ((code = machine_open(&machine, values[C_ID]))) return code;
    for (unsigned i = 0; i < machine.count; i++)
        if (!strcmp(machine.gpu[i].page.c2c, "Enabled")) {
            printf("GPU %u: %s (UUID: %s)\n", machine.gpu[i].index, machine.gpu[i].page.product, machine.gpu[i].page.uuid);
            found = 1;
        }
    if (!found) puts("No Devices support C2C.");
    return found ? EXIT_GOOD : EXIT_UNSUPPORTED;
}
