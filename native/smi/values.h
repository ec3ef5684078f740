/* Values of a card, as text: what the tables of --query-gpu and of -q are made of. */
#ifndef SIMGPU_VALUES_H
#define SIMGPU_VALUES_H

#include "smi.h"

enum known { KNOWN, UNAVAILABLE, DEPRECATED };

/* What a line is about: a card, and for some lines one process, clock or cause of it. */
struct subject {
    const struct machine *machine;
    const struct gpu *gpu;
    const struct process *process;
    const struct account *account;
    unsigned memory_clock, clock;
    const char *cause;
};

/* How to get a value: a function, and the page's field or the text that it works on. */
struct value {
    enum known (*read)(const struct subject *of, const struct value *value, char *into);
    size_t at;
    const char *text;
};

typedef enum known reading(const struct subject *of, const struct value *value, char *into);
reading number, degrees, bytes_up, watts, text_field, on_off, constant, deprecated, unavailable, microseconds, reason,
    ecc_constant, ecc_count, remap_constant, remap_banks, retired_constant, margin_to,
    application_clock;
reading v_timestamp, v_gpu_count, v_gpu_index, v_bus_id, v_pci_domain, v_pci_bus, v_pci_device, v_hex_device, v_hex_subsystem,
    v_pstate, v_reasons, v_memory_free, v_bar1_used, v_bar1_free, v_usage, v_memory_usage, v_engine_usage,
    v_compute_mode, v_capability, v_cuda, v_margin, v_memory_temperature, v_memory_limit_margin, v_power_average,
    v_memory_power, v_mig_mode, v_memory_clock_max, v_pdi, v_board_id, v_virtualization, v_fabric_state, v_fabric_status,
    v_fabric_clique, v_fabric_cluster, v_fabric_health, v_gsp, v_absolute_limit, v_ecc_mode, v_fan_speed, v_bar1_total,
    v_brand, v_host_generation, v_pci_base_class, v_pci_sub_class, v_application_memory_clock;
reading v_account_pid, v_account_usage, v_account_memory_usage, v_account_memory, v_account_time;
reading v_pid, v_process_name, v_process_memory, v_memory_clock, v_clock, v_cause;

/* A unit that stands before its value. */
#define HEX "0x"

#define FIELD(reader, name) {reader, offsetof(struct page, name), 0}
#define NUMBER(name) FIELD(number, name)
#define WATTS(name) FIELD(watts, name)
#define MIB(name) FIELD(bytes_up, name)
#define TEXT(name) FIELD(text_field, name)
#define CONSTANT(words) {constant, 0, words}
#define COMPUTED(reader) {reader, 0, 0}
#define NONE {unavailable, 0, 0}
#define REASON(mask) {reason, mask, 0}

#endif
