// Pins Telegraf, whose input for nvidia-smi the benchmarks run on simulated GPUs.
module simgpu.dev/telegraf

go 1.26.3

require github.com/influxdata/telegraf v1.37.2
