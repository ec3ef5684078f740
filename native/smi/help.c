/* The tool's help. */
#include <stdio.h>
#include <string.h>
#include "smi.h"

void print_help(void)
{
    puts("nvidia-smi [OPTION]... | COMMAND [OPTION]...\n"
         "Shows simulated NVIDIA GPUs, as the tool of the same name shows real ones.\n"
         "\n"
         "Without options: a table of the GPUs and the processes on them.\n"
         "\n"
         "Which GPUs, where to, how often:\n"
         "  -i,   --id=ID[,ID...]          these GPUs only: index, UUID or PCI bus id\n"
         "  -f,   --filename=FILE          write to a file\n"
         "  -l,   --loop[=SECONDS]         again and again, every five seconds by default\n"
         "  -lms, --loop-ms=MILLISECONDS   the same in milliseconds\n"
         "\n"
         "Lists:\n"
         "  -L,   --list-gpus              one line for each GPU and MIG device\n"
         "  -B,   --list-excluded-gpus     GPUs that are kept out\n"
         "        --version                versions of tool, library, driver and CUDA\n"
         "\n"
         "Everything about GPUs:\n"
         "  -q,   --query                  as text\n"
         "  -x,   --xml-format             with -q: as XML\n"
         "  -d,   --display=TOPIC[,...]    with -q: only MEMORY, UTILIZATION, ECC, TEMPERATURE, POWER, CLOCK, COMPUTE, PIDS,\n"
         "                                 PERFORMANCE, SUPPORTED_CLOCKS, PAGE_RETIREMENT, ACCOUNTING, ENCODER_STATS,\n"
         "                                 SUPPORTED_GPU_TARGET_TEMP, VOLTAGE, FBC_STATS, ROW_REMAPPER,\n"
         "                                 GSP_FIRMWARE_VERSION, POWER_SMOOTHING, POWER_PROFILES\n"
         "\n"
         "Chosen columns, as comma-separated values (--help-query-... lists their names):\n"
         "        --query-gpu=COLUMN[,...]\n"
         "        --query-compute-apps=COLUMN[,...]\n"
         "        --query-accounted-apps=COLUMN[,...]\n"
         "        --query-supported-clocks=COLUMN[,...]\n"
         "        --query-retired-pages=COLUMN[,...]\n"
         "        --query-remapped-rows=COLUMN[,...]\n"
         "        --format=csv[,noheader][,nounits]\n"
         "\n"
         "Changes, where the owner of the simulation allows them:\n"
         "  -pl,  --power-limit=WATTS\n"
         "  -lgc, --lock-gpu-clocks=MIN[,MAX]\n"
         "  -rgc, --reset-gpu-clocks\n"
         "  -ac,  --applications-clocks=MEMORY,GRAPHICS\n"
         "  -rac, --reset-applications-clocks\n"
         "  -pm,  --persistence-mode=0|1\n"
         "  -c,   --compute-mode=0|2|3     default, prohibited, exclusive process\n"
         "\n"
         "Known, but never allowed on a simulated GPU:\n"
         "  -mig, --multi-instance-gpu=0|1\n"
         "  -e,   --ecc-config=0|1\n"
         "  -p,   --reset-ecc-errors=0|1\n"
         "  -am,  --accounting-mode=0|1\n"
         "  -caa, --clear-accounted-apps\n"
         "  -lmc, --lock-memory-clocks=MIN[,MAX]\n"
         "  -rmc, --reset-memory-clocks\n"
         "  -gtt, --gpu-target-temp=DEGREES\n"
         "  -r,   --gpu-reset\n"
         "\n"
         "Commands (-h after one of them has more): dmon, pmon, topo, nvlink, c2c, mig, vgpu, power-hint, conf-compute,\n"
         "boost-slider, compute-policy, clocks");
}

static const struct { const char *command, *about; } COMMANDS[] = {
    {"dmon", "a line for each GPU, again and again\n"
             "  -i, --id=ID[,ID...]      these GPUs only\n"
             "  -d, --delay=SECONDS      between lines: 1 by default\n"
             "  -c, --count=LINES        stop after so many\n"
             "  -s, --select=GROUPS      p power and heat, u utilisation, c clocks, v limits hit, m memory, e errors, t PCIe: puc\n"
             "      --gpm-metrics=N,...  1 graphics, 2 multiprocessors, 5 tensor pipes, 10 memory interface, 20 and 21 PCIe\n"
             "  -o, --options=DT         with date and time\n"
             "  -f, --filename=FILE      write to a file\n"
             "      --format=csv[,noheader][,nounit]"},
    {"pmon", "a line for each process on a GPU, again and again\n"
             "  -i, --id=ID[,ID...]      these GPUs only\n"
             "  -d, --delay=SECONDS      between lines: 1 by default\n"
             "  -c, --count=LINES        stop after so many\n"
             "  -s, --select=GROUPS      u utilisation, m memory: u\n"
             "  -o, --options=DT         with date and time\n"
             "  -f, --filename=FILE      write to a file"},
    {"topo", "how GPUs reach each other\n"
             "  -m,   --matrix           the best way for each pair\n"
             "  -mp,  --matrix_pci       the same over PCIe alone\n"
             "  -p2p, --p2pstatus=WHAT   whether pairs can read (r), write (w), use NVLink (n), atomics (a), PCIe (p)\n"
             "  -c,   --cpu=NUMBER       the GPUs nearest to a CPU"},
    {"nvlink", "NVLinks of each GPU\n"
               "  -s,  --status            their speed\n"
               "  -c,  --capabilities      what they can do\n"
               "  -e,  --errorcounters     errors so far\n"
               "  -gt, --getthroughput=d   data so far\n"
               "  -i,  --id=ID[,ID...]     these GPUs only\n"
               "  -l,  --link=NUMBER       this link only"},
    {"c2c", "chip-to-chip links\n"
            "  -s, --status             GPUs that have one\n"
            "  -i, --id=ID[,ID...]      these GPUs only"},
    {"mig", "instances that GPUs are cut into\n"
            "  -lgip,  --list-gpu-instance-profiles              kinds of instances\n"
            "  -lgipp, --list-gpu-instance-possible-placements   where they fit\n"
            "  -lgi,   --list-gpu-instances                      those that are there\n"
            "  -lci,   --list-compute-instances                  what is within them\n"
            "  -lcip,  --list-compute-instance-profiles          what could be within them\n"
            "  -lcipp, --list-compute-instance-possible-placements   and where\n"
            "  -i,     --id=ID[,ID...]                           these GPUs only\n"
            "  -gi,    --gpu-instance-id=ID[,ID...]              these GPU instances only\n"
            "  -cgi,   --create-gpu-instance=PROFILE[:START][,...]   make instances, by id or name of their kind\n"
            "  -C,     --default-compute-instance                with a compute instance in each\n"
            "  -cci,   --create-compute-instance[=PROFILE]       make compute instances that fill GPU instances\n"
            "  -dci,   --destroy-compute-instance                destroy compute instances\n"
            "  -dgi,   --destroy-gpu-instance                    destroy GPU instances\n"
            "  -ci,    --compute-instance-id=ID[,ID...]          these compute instances only"},
    {"vgpu", "virtual GPUs, which simulated GPUs do not have"},
    {"power-hint", "power estimates, which simulated GPUs do not make\n"
                   "  -l, --list-info"},
    {"conf-compute", "confidential computing\n"
                     "  -f, --get-cc-feature     whether it is on"},
    {"boost-slider", "GPUs whose boost can be shifted\n"
                     "  -l, --list"},
    {"compute-policy", "how programs share a GPU\n"
                       "  -l, --list"},
    {"clocks", "clock features, which simulated GPUs do not have"},
};

void print_command_help(const char *command)
{
    for (size_t i = 0; i < sizeof COMMANDS / sizeof *COMMANDS; i++)
        if (!strcmp(command, COMMANDS[i].command)) printf("\nnvidia-smi %s: %s\n\n", command, COMMANDS[i].about);
}
