"""The dashboard of the identity dcgm (dcgm-exporter's names of before 4.9)."""

from __future__ import annotations

from deploy.dashboards.grafana import Dashboard, Panel, Query, Row, Variable, curves, stat

_UTIL = "DCGM_FI_DEV_GPU_UTIL"
_MOST = 16  # curves in one panel
_CHOSEN = ('Hostname=~"$node"', 'modelName=~"$model"')

# Where Prometheus keeps an exporter's own pod under `pod`, as with the chart's ServiceMonitors, the pod that uses a GPU
# is under `exported_pod`.
_POD, _NAMESPACE = "${prefix}pod", "${prefix}namespace"


def _of(metric: str, *more: str) -> str:
    """A metric of the chosen nodes and models."""
    return f"{metric}{{{','.join((*_CHOSEN, *more))}}}"


def _each(metric: str) -> tuple[str, str]:
    """The highest of the GPUs, each with its name."""
    return f"topk({_MOST}, {_of(metric)})", "{{Hostname}} gpu {{gpu}}"


def _by_node(expression: str) -> tuple[str, str]:
    return f"topk({_MOST}, {expression})", "{{Hostname}}"


_FREE, _USED = _of("DCGM_FI_DEV_FB_FREE"), _of("DCGM_FI_DEV_FB_USED")
_POWER, _TEMPERATURE = _of("DCGM_FI_DEV_POWER_USAGE"), _of("DCGM_FI_DEV_GPU_TEMP")
_ENERGY = _of("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION")
_HELD = f'{_POD}!=""'

_FLEET = (
    stat("GPUs", f"count({_of(_UTIL)})"),
    stat("Busy", f"count({_of(_UTIL)} > 0) or vector(0)", about="GPUs with a utilisation above 0."),
    stat("In use by pods", f"count({_of(_UTIL, _HELD)}) or vector(0)"),
    stat("Power", f"sum({_POWER})", "watt"),
    stat("Energy", f"sum(increase({_ENERGY}[$__range])) / 3.6e9", "kwatth", about="Used in the time shown."),
    stat("Hottest GPU", f"max({_TEMPERATURE})", "celsius", warn=80, alarm=88),
    Panel("Utilisation", [Query(f"avg({_of(_UTIL)})")], "percent", kind="gauge", width=4, height=8, most=100),
    Panel(
        "Memory in use", [Query(f"sum({_USED}) / (sum({_USED}) + sum({_FREE}))")], "percentunit", kind="gauge", width=4,
        height=8, most=1, warn=0.9,
    ),
    curves(
        "GPUs", "short", (f"count({_of(_UTIL)})", "all"),
        (f"count({_of(_UTIL, _HELD)}) or vector(0)", "in use by pods"),
        (f"count({_of(_UTIL)} > 0) or vector(0)", "busy"),
    ),
    curves(
        "Utilisation", "percent", (f"avg({_of(_UTIL)})", "mean"), (f"quantile(0.95, {_of(_UTIL)})", "95th percentile"),
        (f"max({_of(_UTIL)})", "highest"), most=100,
    ),
    curves("Power by node", "watt", _by_node(f"sum by (Hostname) ({_POWER})"), stack=True),
    curves("Utilisation by node", "percent", _by_node(f"avg by (Hostname) ({_of(_UTIL)})"), most=100),
    curves("Memory by node", "decmbytes", _by_node(f"sum by (Hostname) ({_USED})")),
)  # fmt: skip

_PODS = (
    Panel(
        "Pods", [
            Query(f"count by ({_NAMESPACE}, {_POD}) ({_of(_UTIL, _HELD)})", "GPUs"),
            Query(f"avg by ({_NAMESPACE}, {_POD}) ({_of(_UTIL, _HELD)})", "Utilisation"),
            Query(f"sum by ({_NAMESPACE}, {_POD}) ({_of('DCGM_FI_DEV_FB_USED', _HELD)})", "Memory"),
            Query(f"sum by ({_NAMESPACE}, {_POD}) ({_of('DCGM_FI_DEV_POWER_USAGE', _HELD)})", "Power"),
        ], "short,percent,decmbytes,watt", kind="table", width=14, height=10,
    ),
    curves(
        "GPUs by namespace", "short", (f"count by ({_NAMESPACE}) ({_of(_UTIL, _HELD)})", f"{{{{{_NAMESPACE}}}}}"),
        width=10, height=10, stack=True,
    ),
)  # fmt: skip

_GPUS = (
    curves("Utilisation", "percent", _each(_UTIL), most=100),
    curves("Power", "watt", _each("DCGM_FI_DEV_POWER_USAGE")),
    curves("Temperature", "celsius", _each("DCGM_FI_DEV_GPU_TEMP"), warn=80, alarm=88),
    curves("SM clock", "rotmhz", _each("DCGM_FI_DEV_SM_CLOCK")),
    curves("Memory in use", "decmbytes", _each("DCGM_FI_DEV_FB_USED")),
    curves("Memory temperature", "celsius", _each("DCGM_FI_DEV_MEMORY_TEMP"), warn=90, alarm=95),
    curves("Tensor pipe active", "percentunit", _each("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"), most=1),
    curves("Memory interface active", "percentunit", _each("DCGM_FI_PROF_DRAM_ACTIVE"), most=1),
    curves("Graphics engine active", "percentunit", _each("DCGM_FI_PROF_GR_ENGINE_ACTIVE"), most=1),
)

_LINKS = (
    curves("PCIe received", "Bps", _each("DCGM_FI_PROF_PCIE_RX_BYTES")),
    curves("PCIe sent", "Bps", _each("DCGM_FI_PROF_PCIE_TX_BYTES")),
    curves("NVLink", "MBs", _each("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL")),
    stat("GPUs with an XID error", f"count({_of('DCGM_FI_DEV_XID_ERRORS')} > 0) or vector(0)", alarm=1),
    stat("Failed row remaps", f"sum({_of('DCGM_FI_DEV_ROW_REMAP_FAILURE')})", alarm=1),
    stat("Rows remapped, uncorrectable", f"sum({_of('DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS')})", warn=1),
    stat("Rows remapped, correctable", f"sum({_of('DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS')})", warn=1),
    stat("PCIe retries", f"sum({_of('DCGM_FI_DEV_PCIE_REPLAY_COUNTER')})", warn=1),
)

DASHBOARD = Dashboard(
    "simgpu-dcgm", "GPUs (DCGM)",
    "A fleet of NVIDIA GPUs as dcgm-exporter reports it: totals, pods, and the most used GPUs of the chosen nodes.",
    (
        Variable("node", "Node", _UTIL, "Hostname"),
        Variable("model", "Model", _UTIL, "modelName"),
        Variable("prefix", "Prefix of the pod's labels", options=("exported_", "")),
    ),
    (
        Row("Fleet", _FLEET),
        Row("Pods", _PODS),
        Row(f"GPUs: the {_MOST} highest of the chosen nodes", _GPUS),
        Row("Links and errors", _LINKS),
    ),
)  # fmt: skip
