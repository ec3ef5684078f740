/* nvidia-smi over a hostile page, with each of its views. */
#include <string.h>

#include "pages.h"
#include "tool.h"

static const char *const VIEWS[] = {
    "nvidia-smi", "nvidia-smi -q", "nvidia-smi -q -x", "nvidia-smi -L", "nvidia-smi dmon -c 1", "nvidia-smi pmon -c 1",
    "nvidia-smi topo -m", "nvidia-smi nvlink -s", "nvidia-smi nvlink -e", "nvidia-smi nvlink -c", "nvidia-smi mig -lgi",
    "nvidia-smi mig -lgip", "nvidia-smi mig -lgipp", "nvidia-smi mig -lci", "nvidia-smi mig -lcip",
    "nvidia-smi mig -lcipp", "nvidia-smi c2c -s", "nvidia-smi -q -d CLOCK", "nvidia-smi --query-compute-apps=pid,name --format=csv",
    "nvidia-smi --query-supported-clocks=gr,mem --format=csv", "nvidia-smi --query-remapped-rows=gpu_uuid --format=csv",
    "nvidia-smi --query-gpu=name,uuid,pci.bus_id,memory.used,power.draw,clocks.sm,temperature.gpu,mig.mode.current --format=csv",
    "nvidia-smi -pl 300", "nvidia-smi -lgc 300,1500", "nvidia-smi -mig 1", "nvidia-smi mig -cgi 19 -C",
    "nvidia-smi mig -dgi", "nvidia-smi --version", "nvidia-smi dmon -s pucvmet -c 1", "nvidia-smi topo -p2p n",
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char line[256], *words[16], *rest = line;
    int count = 0;
    if (size < 17) return 0;
    pages_prepare();
    owner_answers(data + 1, 15);
    page_put(data + 16, size - 16);
    strncpy(line, VIEWS[data[0] % (sizeof VIEWS / sizeof *VIEWS)], sizeof line - 1);
    line[sizeof line - 1] = 0;
    for (char *word; count < 15 && (word = strsep(&rest, " "));) words[count++] = word;
    words[count] = 0;
    tool_run(count, words);
    return 0;
}
