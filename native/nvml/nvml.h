/* NVML's codes and structures, as far as the library uses them; sizes are checked, since callers rely on them. */
#ifndef SIMGPU_NVML_H
#define SIMGPU_NVML_H

#include <stdint.h>

enum code {
    OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, TIMEOUT = 10, FUNCTION_NOT_FOUND = 13, GPU_IS_LOST = 15,
    IN_USE = 19, INSUFFICIENT_MEMORY = 20, VERSION_MISMATCH = 25, NOT_READY = 27, UNKNOWN = 999
};
enum value_type { TYPE_DOUBLE = 0, TYPE_UINT = 1, TYPE_ULONGLONG = 3, TYPE_INT = 5, TYPE_USHORT = 6 };
enum clock { CLOCK_GRAPHICS, CLOCK_SM, CLOCK_MEMORY, CLOCK_VIDEO, CLOCKS };

#define NO_INSTANCE 0xffffffffu
#define VERSION(structure, number) ((uint32_t)sizeof(structure) | (uint32_t)(number) << 24)
#define SIZE(structure, bytes) _Static_assert(sizeof(structure) == (bytes), #structure)

typedef const void *handle;

struct pci_v1 { char bus_id[16]; uint32_t domain, bus, device, id; };
struct pci_v2 { struct pci_v1 first; uint32_t subsystem; };
struct pci { struct pci_v2 second; char bus_id[32]; };
struct pci_ext { uint32_t version, domain, bus, device, id, subsystem, base_class, sub_class; char bus_id[32]; };
SIZE(struct pci, 68);
SIZE(struct pci_ext, 64);

struct memory { uint64_t total, free, used; };
struct memory_v2 { uint32_t version; uint64_t total, reserved, free, used; };
struct utilization { uint32_t gpu, memory; };
SIZE(struct memory_v2, 40);

struct process_v1 { uint32_t pid; uint64_t memory; };
struct process_v2 { uint32_t pid; uint64_t memory; uint32_t gpu_instance, compute_instance; };
struct process_detail { struct process_v2 process; uint64_t protected_memory; };
struct process_details { uint32_t version, mode, count; struct process_detail *processes; };
struct process_sample { uint32_t pid; uint64_t time; uint32_t sm, memory, encoder, decoder; };
struct process_usage { uint64_t time; uint32_t pid, sm, memory, encoder, decoder, jpeg, ofa; };
struct process_usages { uint32_t version, count; uint64_t last_seen; struct process_usage *processes; };
struct process_named { struct process_v2 process; uint64_t protected_memory; char name[4096]; };
SIZE(struct process_v1, 16);
SIZE(struct process_v2, 24);
SIZE(struct process_detail, 32);
SIZE(struct process_details, 24);
SIZE(struct process_sample, 32);
SIZE(struct process_usage, 40);
SIZE(struct process_usages, 24);
SIZE(struct process_named, 4128);

union value { double real; uint32_t ui; uint64_t ull; int32_t si; };
struct field_value { uint32_t id, scope; int64_t time, latency; uint32_t type, code; union value value; };
struct value_sample { uint64_t time; union value value; };
struct violation { uint64_t time, violated; };
struct process_reading { struct value_sample sample; uint32_t pid, unused[15]; };
struct process_readings { struct process_reading sm, memory, encoder, decoder, jpeg, ofa; uint64_t unused; };
SIZE(struct process_reading, 80);
SIZE(struct process_readings, 488);
SIZE(struct field_value, 40);
SIZE(struct value_sample, 16);

struct ecc_counts { uint64_t l1, l2, memory, registers; };
struct ecc_sram { uint32_t version; uint64_t counts[11]; uint32_t threshold_exceeded; };
struct histogram { uint32_t max, high, partial, low, none; };
struct remapped_rows { uint32_t corrected, corrected_inactive, uncorrected, uncorrected_inactive, pending, failed; };
SIZE(struct ecc_counts, 32);
SIZE(struct ecc_sram, 104);
SIZE(struct histogram, 20);

struct event_v1 { handle device; uint64_t type, data; };
struct event { struct event_v1 first; uint32_t gpu_instance, compute_instance; };
SIZE(struct event, 32);

struct attributes {
    uint32_t multiprocessors, copy_engines, decoders, encoders, jpegs, ofas, gpu_slices, compute_slices;
    uint64_t memory_mb;
};
struct profile_info {
    uint32_t id, p2p, slices, instances, multiprocessors, copy_engines, decoders, encoders, jpegs, ofas;
    uint64_t memory_mb;
};
struct profile_info_v2 {
    uint32_t version, id, p2p, slices, instances, multiprocessors, copy_engines, decoders, encoders, jpegs, ofas;
    uint64_t memory_mb;
    char name[96];
};
struct profile_info_v3 {
    uint32_t version, id, slices, instances, multiprocessors, copy_engines, decoders, encoders, jpegs, ofas;
    uint64_t memory_mb;
    char name[96];
    uint32_t capabilities;
};
struct placement { uint32_t start, size; };
struct gpu_instance_info { handle device; uint32_t id, profile; struct placement placement; };
struct compute_instance_info { handle device, gpu_instance; uint32_t id, profile; struct placement placement; };
struct compute_profile_info {
    uint32_t id, slices, instances, multiprocessors, copy_engines, decoders, encoders, jpegs, ofas;
};
struct compute_profile_info_v2 { uint32_t version; struct compute_profile_info info; char name[96]; };
SIZE(struct attributes, 40);
SIZE(struct profile_info, 48);
SIZE(struct profile_info_v2, 152);
SIZE(struct profile_info_v3, 152);
SIZE(struct gpu_instance_info, 24);
SIZE(struct compute_instance_info, 32);
SIZE(struct compute_profile_info, 36);
SIZE(struct compute_profile_info_v2, 136);

struct fabric { uint8_t cluster[16]; uint32_t status, clique, state; };
struct fabric_v2 { uint32_t version; struct fabric first; uint32_t health; };
struct fabric_v3 { struct fabric_v2 second; uint8_t summary; };
struct platform { uint32_t version; char guid[16], chassis[16]; uint8_t slot, tray, host, peer, module; };
SIZE(struct fabric, 28);
SIZE(struct fabric_v2, 36);
SIZE(struct fabric_v3, 40);
SIZE(struct platform, 44);

/* A version word and one figure, or two: many getters return no more. */
struct versioned { uint32_t version, value; };
struct versioned_two { uint32_t version, first, second; };
struct temperature { uint32_t version, sensor; int32_t degrees; };
struct thermal_sensor { int32_t controller, lowest, highest, now, target; };
struct thermal_settings { uint32_t count; struct thermal_sensor sensor[3]; };
struct pdi { uint32_t version; uint64_t value; };
struct clock_offset { uint32_t version, type, pstate; int32_t offset, least, most; };
struct clock_text { uint32_t version; char text[2048]; };
struct pstate_use { uint32_t present, percent, raise, lower; };
struct pstates_info { uint32_t flags; struct pstate_use use[8]; };
struct power_value { uint32_t version, scope, milliwatts; };
struct uuid_query { uint32_t version, type; char text[44]; };
SIZE(struct temperature, 12);
SIZE(struct thermal_settings, 64);
SIZE(struct pdi, 16);
SIZE(struct clock_offset, 24);
SIZE(struct clock_text, 2052);
SIZE(struct uuid_query, 52);

struct gpm_info { const char *name, *long_name, *unit; };
struct gpm_metric { uint32_t id, code; double value; struct gpm_info info; };
enum { GPM_METRICS = 333 };
struct gpm_request { uint32_t version, count; void *first, *second; struct gpm_metric metric[GPM_METRICS]; };
SIZE(struct gpm_metric, 40);
SIZE(struct gpm_request, 13344);

struct branch { uint32_t version; char name[80]; };
struct compute_caps { uint32_t cpu, gpus; };
struct compute_state { uint32_t environment, feature, tools; };
struct compute_settings { uint32_t version, environment, feature, tools, multi_gpu; };
struct compute_sizes { uint64_t protected_kib, unprotected_kib; };
struct rotation { uint32_t version; uint64_t advantage; };
SIZE(struct branch, 84);
SIZE(struct rotation, 16);

#endif
