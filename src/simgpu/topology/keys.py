"""Keys that a topology may have, by section; others are reported as unknown.

All keys of fake-gpu-operator are listed, including those that have no effect here.
"""

from __future__ import annotations

from simgpu.vocabulary import GPU_MEMORY_KEY

TOP = (
    "nodePools", "nodes", "nodePoolLabelKey", "migStrategy", "mig-strategy", "gpuOperator", "allocation", "dra",
    "version", "mig-configs",
)  # fmt: skip

_ANY_POOL = (
    "otherDevices", "resources", "numa", "sharing", "failures", "settable", "utilizationFrom", "allocation", "dra",
    "mig",
)  # fmt: skip
LISTED_POOL = ("gpus", *_ANY_POOL)
PROFILED_POOL = ("gpu", *_ANY_POOL)
OLD_POOL = ("gpuProduct", "gpuCount", "gpuMemory", *_ANY_POOL)

LISTED_GPU = ("type", "memory", "count")
OTHER_DEVICE = ("name", "count")
NUMA = (
    "zones", "gpusPerZone", "topologyManagerPolicy", "topologyManagerScope", "cpuPerZone", "memPerZone", "distances",
)  # fmt: skip
DISTANCES = ("self", "remote")

PROFILED_GPU = ("backend", "profile", "overrides")
OVERRIDES = (
    "version", "system", "device_defaults", "device_count", "devices", "nvlink", "infiniband", "pcie_topology",
)  # fmt: skip
SYSTEM = ("driver_version", "nvml_version", "cuda_version", "cuda_version_major", "cuda_version_minor")
DEVICE_DEFAULTS = (
    "name", "brand", "serial", "board_part_number", "vbios_version", "architecture", "compute_capability",
    "num_gpu_cores", "inforom", "memory", "bar1_memory", "pci", "pcie", "power", "thermal", "fan", "clocks",
    "clocks_throttle_reasons", "supported_clocks", "performance_state", "utilization", "encoder_stats", "fbc_stats",
    "ecc", "retired_pages", "remapped_rows", "display", "persistence_mode", "compute_mode", "mig",
    "gpu_operation_mode", "driver_model", "accounting", "virtualization", "gsp_firmware", "processes", "features",
    "fabric", "grace_superchip",
)  # fmt: skip
MEMORY = ("total_bytes", "reserved_bytes", "free_bytes", "used_bytes", "memory_bus_width")

NAMED_NODE = (
    GPU_MEMORY_KEY, "gpu-product", "gpus", "sharing", "failures", "settable", "utilizationFrom", "allocation", "dra",
    "mig",
)  # fmt: skip
NAMED_GPU = ("id", "metrics")
METRICS = ("metadata", "utilization", "fb-used")
OWNER = ("namespace", "pod", "container")
