"""The layout of a page, as one table; the numpy dtype and the C header come from it.

A page holds the state of one GPU. Its fields never move: new ones are added at the end and raise MINOR, so that older
readers can read newer pages. Only an incompatible change raises MAJOR. All is little-endian and naturally aligned.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec
import numpy as np

MAGIC: Final = 0x55504753  # "SGPU"
MAJOR: Final = 1
MINOR: Final = 5
PROFILES: Final = 16
INSTANCES: Final = 8
SAMPLES: Final = 128
APPS: Final = 32
EVENTS: Final = 64
ACCOUNTS: Final = 32

# Which processes use the GPU: none, all in the reader's /proc, those that the page lists, or those whose names it lists
# too, of a machine that is not the reader's.
NO_PROCESSES, ALL_PROCESSES, LISTED_PROCESSES, NAMED_PROCESSES = 0, 1, 3, 5

# ECC: not supported, disabled, enabled.
ECC_NONE, ECC_OFF, ECC_ON = 1, 2, 3

_C_TYPES = {"u4": "uint32_t", "i4": "int32_t", "u8": "uint64_t"}


class Field(msgspec.Struct, frozen=True):
    """A field: a numpy type such as `u4`, or `S32` for text, or the name of a record; `count` times.

    `fact` is the path of a figure of the model, `state` a quantity of the simulation. `scale` multiplies either.
    """

    name: str
    type: str
    about: str
    count: int = 1
    fact: str = ""
    state: str = ""
    scale: float = 1.0


def _f(name: str, kind: str, about: str, **more: object) -> Field:
    return msgspec.convert({"name": name, "type": kind, "about": about, **more}, Field)


PROFILE: Final = (
    _f("name", "S24", "such as 1g.18gb+me"),
    _f("id", "u4", "as mig -lgip numbers it"),
    _f("slices", "u4", "compute slices"),
    _f("most", "u4", "instances that fit on an empty card"),
    _f("sm", "u4", "multiprocessors"),
    _f("memory_mib", "u4", "memory"),
    _f("copy_engines", "u4", ""),
    _f("decoders", "u4", ""),
    _f("jpegs", "u4", ""),
    _f("ofas", "u4", ""),
)
INSTANCE: Final = (
    _f("uuid", "S80", "MIG-..."),
    _f("gpu_instance", "u4", "number of the GPU instance"),
    _f("compute_instance", "u4", "number of the compute instance"),
    _f("profile", "u4", "place in profiles[]"),
    _f("start", "u4", "first memory slice"),
    _f("slices", "u4", "memory slices"),
    _f("usage", "u4", "percent"),
    _f("memory_total", "u8", "bytes"),
    _f("memory_used", "u8", "bytes"),
    _f("open", "u4", "whether a program has it open"),
    _f("bar1_kib", "u4", "its window on the bus; the card's own if it is the whole card"),
)
SAMPLE: Final = (
    _f("time_us", "u8", "microseconds since 1970"),
    _f("power_mw", "u4", ""),
    _f("usage", "u4", "percent"),
    _f("memory_usage", "u4", "percent"),
    _f("sm_clock", "u4", "MHz"),
    _f("memory_clock", "u4", "MHz"),
    _f("spare", "u4", ""),
)
APP: Final = (
    _f("pid", "i4", "as the writer counts processes"),
    _f("instance", "i4", "place in instances[]; -1: the card as a whole"),
    _f("usage", "u4", "percent"),
    _f("memory_usage", "u4", "percent"),
    _f("memory", "u8", "bytes"),
)
PORTION: Final = (
    _f("partial", "u4", "0: it fills the GPU instance"),
    _f("kind", "u4", "as mig -lcip numbers it"),
    _f("start", "u4", "first slice within the GPU instance"),
)
APP_NAME: Final = (_f("text", "S64", "of its program"),)
ERROR: Final = (
    _f("time_us", "u8", "microseconds since 1970"),
    _f("type", "u4", "as NVML's mask of events"),
    _f("data", "u4", "of an XID error its number"),
)
ORIGIN: Final = (
    _f("gpu_instance", "u4", "its number, plus 1; 0: none"),
    _f("compute_instance", "u4", "likewise"),
)
ACCOUNT: Final = (
    _f("pid", "i4", "as in apps[]; 0: none"),
    _f("running", "u4", "whether it has the card open"),
    _f("start_us", "u8", "when it was first seen, in microseconds since 1970"),
    _f("last_us", "u8", "when it was last seen"),
    _f("busy", "u8", "percent of the card's time, times microseconds"),
    _f("memory_busy", "u8", "the same of the memory"),
    _f("memory_max", "u8", "bytes"),
)
RECORDS: Final = {
    "profile": PROFILE, "instance": INSTANCE, "sample": SAMPLE, "app": APP, "app_name": APP_NAME, "error": ERROR,
    "account": ACCOUNT, "portion": PORTION, "origin": ORIGIN,
}  # fmt: skip

PAGE: Final = (
    # How to read the page.
    _f("magic", "u4", "MAGIC"),
    _f("major", "u4", "another one cannot be read"),
    _f("minor", "u4", "grows with fields"),
    _f("size", "u4", "bytes that the writer knows of"),
    _f("sequence", "u8", "odd while the page is being written"),
    _f("written_ns", "u8", "monotonic time of the last write"),
    _f("stale_ns", "u8", "older than this means that the writer is gone"),
    # Which card this is.
    _f("index", "u4", "on its machine"),
    _f("minor_number", "u4", "of its device file"),
    _f("uuid", "S80", "GPU-..."),
    _f("serial", "S32", ""),
    _f("product", "S96", ""),
    _f("architecture", "S32", ""),
    _f("driver", "S80", "version of the driver"),
    _f("cuda", "u4", "version of CUDA: 13000 is 13.0"),
    _f("capability", "u4", "compute capability: 900 is 9.0"),
    _f("pci_domain", "u4", ""),
    _f("pci_bus", "u4", ""),
    _f("pci_device", "u4", ""),
    _f("pci_id", "u4", "0xDDDDVVVV"),
    _f("pci_subsystem", "u4", "0xDDDDVVVV"),
    _f("pcie_generation", "u4", "", fact="pci.generation"),
    _f("pcie_width", "u4", "", fact="pci.width"),
    _f("board_id", "u4", ""),
    _f("module_id", "u4", ""),
    _f("numa", "i4", "-1 where there is none"),
    _f("first_cpu", "u4", "the CPUs of its NUMA node"),
    _f("cpus", "u4", ""),
    _f("pdi", "u8", ""),
    _f("part_number", "S32", ""),
    _f("gpu_part_number", "S32", ""),
    _f("vbios", "S32", ""),
    _f("inforom_image", "S32", ""),
    _f("inforom_oem", "S16", ""),
    _f("inforom_ecc", "S16", "empty: the card has no ECC"),
    _f("addressing", "S16", "None, HMM or ATS"),
    _f("c2c", "S16", "Disabled, Enabled or N/A"),
    _f("virtualization", "u4", "0 none, 1 pass-through"),
    _f("persistence", "u4", ""),
    _f("cores", "u4", "", fact="cores"),
    _f("sm_count", "u4", "", fact="sm_count"),
    _f("bus_width", "u4", "bits of the memory interface; 0 where unknown", fact="memory_bus_bits"),
    _f("row_remap_banks", "u4", "", fact="row_remap_banks"),
    _f("margins", "u4", "whether limits of temperature are shown as margins"),
    _f("temperature_shutdown", "u4", "degrees; 0 where unknown", fact="temperature_c.shutdown"),
    _f("temperature_slowdown", "u4", "", fact="temperature_c.slowdown"),
    _f("temperature_gpu_max", "u4", "", fact="temperature_c.gpu_max"),
    _f("temperature_memory_max", "u4", "", fact="temperature_c.memory_max"),
    _f("power_default_mw", "u4", "", fact="power_w.default", scale=1000.0),
    _f("power_min_mw", "u4", "", fact="power_w.min", scale=1000.0),
    _f("power_max_mw", "u4", "", fact="power_w.max", scale=1000.0),
    _f("sm_clock_min", "u4", "MHz", fact="clocks_mhz.sm_min"),
    _f("sm_clock_max", "u4", "", fact="clocks_mhz.sm_max"),
    _f("sm_clock_step_khz", "u4", "between supported clocks", fact="clocks_mhz.sm_step", scale=1000.0),
    _f("video_clock_max", "u4", "", fact="clocks_mhz.video_max"),
    _f("memory_clocks", "u4", "supported ones, highest first; 0 ends them", count=4),
    _f("memory_total", "u8", "bytes", fact="memory_mib.total", scale=1048576.0),
    _f("memory_reserved", "u8", "bytes that the driver keeps"),
    _f("bar1_total", "u8", "bytes", fact="memory_mib.bar1", scale=1048576.0),
    _f("links", "u4", "active NVLinks; 0 without peers"),
    _f("link_version", "u4", "", fact="links.version"),
    _f("link_mbps", "u4", "MB/s of a link and direction", fact="links.gb_per_second", scale=1000.0),
    _f("fabric", "u4", "whether the links end in switches, all cards of the machine on one fabric"),
    _f("mig_capable", "u4", ""),
    _f("mig_mode", "u4", ""),
    _f("profiles", "profile", "kinds of GPU instances; a profile without a name ends them", count=PROFILES),
    # Who may do what.
    _f("processes", "u4", "0: none, 1: all that the reader's /proc has, 3: those in apps[], 5: with app_names[]"),
    _f("process_root", "i4", "no longer used"),
    _f("control", "S108", "socket that takes settings; empty: nothing can be set"),
    # What it does now.
    _f("usage", "u4", "percent of time", state="usage"),
    _f("memory_usage", "u4", "percent of time", state="memory_usage"),
    _f("open", "u4", "whether a program has the card open", state="open"),
    _f("pstate", "u4", "0 is the fastest", state="pstate"),
    _f("sm_clock", "u4", "MHz", state="sm_clock"),
    _f("memory_clock", "u4", "MHz", state="memory_clock"),
    _f("video_clock", "u4", "MHz", state="video_clock"),
    _f("sm_clock_highest", "u4", "MHz; what the clock is locked to, or its maximum", state="sm_clock_highest"),
    _f("power_mw", "u4", "average of a second", state="power", scale=1000.0),
    _f("power_instant_mw", "u4", "", state="power_instant", scale=1000.0),
    _f("power_memory_mw", "u4", "of it, what the memory draws; 0 where unknown", state="power_memory", scale=1000.0),
    _f("power_limit_mw", "u4", "", state="power_limit", scale=1000.0),
    _f("temperature", "i4", "degrees", state="temperature"),
    _f("temperature_memory", "i4", "degrees", state="memory_temperature"),
    _f("temperature_margin", "i4", "degrees to the limit", state="temperature_margin"),
    _f("compute_mode", "u4", ""),
    _f("reasons", "u8", "for a lower clock, as NVML's mask", state="reasons"),
    _f("energy_mj", "u8", "", state="energy", scale=1000.0),
    _f("memory_used", "u8", "bytes, without what the driver keeps", state="memory"),
    _f("bar1_used", "u8", "bytes", state="bar1_used"),
    _f("throttle_power_ns", "u8", "", state="power_throttle", scale=1e9),
    _f("throttle_thermal_ns", "u8", "", state="thermal_throttle", scale=1e9),
    _f("throttle_hardware_ns", "u8", "", state="hardware_throttle", scale=1e9),
    _f("pcie_tx_kbps", "u4", "KB/s to the host", state="pcie_rate_out", scale=1e-3),
    _f("pcie_rx_kbps", "u4", "KB/s from the host", state="pcie_rate", scale=1e-3),
    _f("pcie_tx_bytes", "u8", "", state="pcie_bytes_out"),
    _f("pcie_rx_bytes", "u8", "", state="pcie_bytes"),
    _f("link_bytes", "u8", "over all NVLinks, each direction half", state="fabric_bytes"),
    _f("ecc_corrected", "u8", "", state="corrected"),
    _f("ecc_uncorrected", "u8", "", state="uncorrected"),
    _f("xids", "u8", "errors so far", state="xids"),
    _f("xid", "u4", "the last of them", state="xid"),
    _f("busy_ppm", "u4", "engine active, parts of a million", state="busy", scale=1e6),
    _f("sm_ppm", "u4", "multiprocessors active", state="sm_active", scale=1e6),
    _f("tensor_ppm", "u4", "tensor pipes active", state="tensor_active", scale=1e6),
    _f("dram_ppm", "u4", "memory interface active", state="dram_active", scale=1e6),
    _f("instance_count", "u4", ""),
    _f("instances", "instance", "the card's MIG devices", count=INSTANCES),
    _f("sample_count", "u8", "samples so far; the last is at (sample_count - 1) % SAMPLES"),
    _f("samples", "sample", "readings of the last steps", count=SAMPLES),
    _f("branch", "S32", "of the driver's sources"),
    _f("idle_ns", "u8", "time with nothing to do", state="idle_time", scale=1e9),
    # Since minor version 1; pages without them are of cards that are like the others of a data centre.
    _f("brand", "S24", "empty: NVIDIA"),
    _f("pci_class", "u4", "class and sub-class; 0: 0x0302"),
    _f("ecc", "u4", "ECC_...; 0: on where inforom_ecc is there"),
    _f("fans", "u4", "", fact="fans.count"),
    _f("fan_speed", "u4", "percent", state="fan_speed"),
    _f("more_memory_clocks", "u4", "those after memory_clocks", count=4),
    _f("boot", "S40", "the start of the machine that written_ns counts from; empty: unknown"),
    _f("app_count", "u4", ""),
    _f("apps", "app", "processes that have the card open, by instance and pid", count=APPS),
    # Since minor version 2.
    _f("bare_count", "u4", "GPU instances without a compute instance; they follow the MIG devices in instances[]"),
    # Since minor version 3.
    _f("portions", "portion", "the compute instance of each of instances[]", count=INSTANCES),
    _f("hangs", "u8", "of programs so far", state="hangs"),
    _f("losses", "u8", "falls off the bus so far", state="losses"),
    _f("event_count", "u8", "errors so far; the last is at (event_count - 1) % EVENTS"),
    _f("events", "error", "the last errors", count=EVENTS),
    _f("logged_count", "u8", "those of event_count that the kernel log has"),
    _f("pid_namespace", "u8", "that pids of apps[] are of, by inode; readers elsewhere take all that their /proc has"),
    _f("accounting", "u4", "whether processes are recorded in accounts[]"),
    _f("accounts", "account", "processes that had the card open, oldest first; pid 0 ends them", count=ACCOUNTS),
    _f("app_names", "app_name", "the names of apps[], where they are processes of another machine", count=APPS),
    # Since minor version 4.
    _f("event_origins", "origin", "the instance that each of events[] was on", count=EVENTS),
    # Since minor version 5: counters that only a writer reads, to go on with.
    _f("busy_ns", "u8", "time with something to do", state="busy_time", scale=1e9),
    _f("memory_kbytes", "u8", "KB to and from the memory", state="memory_bytes", scale=1e-3),
)  # fmt: skip


def _numpy(fields: tuple[Field, ...]) -> np.dtype[np.void]:
    columns: list[tuple[str, object, tuple[int, ...]] | tuple[str, object]] = []
    for field in fields:
        kind = _numpy(RECORDS[field.type]) if field.type in RECORDS else np.dtype(_little(field.type))
        columns.append((field.name, kind) if field.count == 1 else (field.name, kind, (field.count,)))
    return np.dtype(columns, align=True)


def _little(kind: str) -> str:
    return kind if kind.startswith("S") else f"<{kind}"


DTYPE: Final = _numpy(PAGE)


def header() -> str:
    """Return the text of the C header."""
    return "\n".join(_header()) + "\n"


def _header() -> Iterator[str]:
    yield "/* Made from the table of simgpu.page.layout; not to be edited. */"
    yield "#ifndef SIMGPU_PAGE_H"
    yield "#define SIMGPU_PAGE_H"
    yield "#include <stdint.h>"
    constants = {
        "MAGIC": MAGIC, "MAJOR": MAJOR, "MINOR": MINOR, "PROFILES": PROFILES, "INSTANCES": INSTANCES,
        "SAMPLES": SAMPLES, "APPS": APPS, "NO_PROCESSES": NO_PROCESSES, "ALL_PROCESSES": ALL_PROCESSES,
        "LISTED_PROCESSES": LISTED_PROCESSES, "NAMED_PROCESSES": NAMED_PROCESSES, "EVENTS": EVENTS,
        "ACCOUNTS": ACCOUNTS, "ECC_NONE": ECC_NONE, "ECC_OFF": ECC_OFF, "ECC_ON": ECC_ON,
    }  # fmt: skip
    for name, value in constants.items():
        yield f"#define PAGE_{name} {value:#x}u"
    for name, fields in (*RECORDS.items(), ("page", PAGE)):
        yield f"struct {name} {{"
        yield from (f"    {_member(field)};" + (f" /* {field.about} */" if field.about else "") for field in fields)
        yield "};"
    yield "/* Every text of a page by its place, for a reader that trusts none of them to end. */"
    texts = [field.name for field in PAGE if field.type.startswith("S")]
    yield f"#define PAGE_TEXTS(text) {' '.join(f'text({name})' for name in texts)}"
    yield f'_Static_assert(sizeof(struct page) == {DTYPE.itemsize}, "the page is as large as the table says");'
    for name, (_, offset, *_) in (DTYPE.fields or {}).items():
        yield f'_Static_assert(__builtin_offsetof(struct page, {name}) == {offset}, "{name}");'
    yield "#endif"


def _member(field: Field) -> str:
    many = f"[{field.count}]" if field.count > 1 else ""
    if field.type in RECORDS:
        return f"struct {field.type} {field.name}{many}"
    if field.type.startswith("S"):
        return f"char {field.name}[{field.type[1:]}]"
    return f"{_C_TYPES[field.type]} {field.name}{many}"
