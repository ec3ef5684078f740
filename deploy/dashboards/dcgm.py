"""The dashboard of the identity dcgm (dcgm-exporter's names of before 4.9)."""

from __future__ import annotations

from deploy.dashboards.grafana import Dashboard, Panel, Query, Row, Variable, curves, stat

_MOST = 16  # curves in one panel
_CHOSEN = ('Hostname=~"$node"', 'modelName=~"$model"')

# Where Prometheus keeps an exporter's own pod under `pod`, as with the chart's ServiceMonitors, the pod that uses a GPU
# is under `exported_pod`.
_POD, _NAMESPACE = "${prefix}pod", "${prefix}namespace"
_BY_POD, _HELD = f"{_NAMESPACE}, {_POD}", f'{_POD}!=""'

# A divided GPU has no series of its own: each of its MIG instances has the card's power, temperature and the like, its
# share of the card's energy and links, and a memory and a utilisation of its own.
_CARD, _INSTANCE = "Hostname, gpu", "Hostname, gpu, GPU_I_PROFILE, GPU_I_ID"


def _of(metric: str, *more: str) -> str:
    """A metric of the chosen nodes and models."""
    return f"{metric}{{{','.join((*_CHOSEN, *more))}}}"


def _cards(expression: str, how: str = "max", *, by: str = "") -> str:
    """One value for each card: all its series have the same one, or `how` makes one of them; `by` further labels."""
    return f"{how} by ({f'{by}, ' if by else ''}{_CARD}) ({expression})"


def _instances(expression: str) -> str:
    """One value for each MIG instance, and for each GPU that is not divided."""
    return f"max by ({_INSTANCE}) ({expression})"


def _count(*more: str, by: str = "") -> str:
    """The number of cards; by labels, that of the cards with each of their values."""
    counted = _cards(_of("DCGM_FI_DEV_GPU_TEMP", *more), "count", by=by)
    return f"count by ({by}) ({counted})" if by else f"count({counted})"


def _utilisation(*more: str) -> str:
    """In percent, of GPUs and of MIG instances, for which DCGM has no utilisation but the activity of their engine."""
    whole = _of("DCGM_FI_DEV_GPU_UTIL", 'GPU_I_ID=""', *more)
    instances = _of("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 'GPU_I_ID!=""', *more)
    return f"({whole} or 100 * {instances})"


def _each(metric: str, how: str = "max") -> tuple[str, str]:
    """The highest of the cards, each with its name."""
    return f"topk({_MOST}, {_cards(_of(metric), how)})", "{{Hostname}} gpu {{gpu}}"


def _each_instance(expression: str) -> tuple[str, str]:
    """The highest of the GPUs and MIG instances, each with its name."""
    legend = "{{Hostname}} gpu {{gpu}} {{GPU_I_PROFILE}} {{GPU_I_ID}}"
    return f"topk({_MOST}, {_instances(expression)})", legend


def _by_node(expression: str) -> tuple[str, str]:
    return f"topk({_MOST}, {expression})", "{{Hostname}}"


def _summed(metric: str) -> str:
    return f"sum({_cards(_of(metric))})"


_FREE, _USED = _instances(_of("DCGM_FI_DEV_FB_FREE")), _instances(_of("DCGM_FI_DEV_FB_USED"))
_ENERGY = _of("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION")
_BUSY = f"count({_cards(_utilisation())} > 0) or vector(0)"
_IN_USE = f"{_count(_HELD)} or vector(0)"
_MEANS = _cards(_utilisation(), "avg")  # of each card

_FLEET = (
    stat("GPUs", _count()),
    stat("Busy", _BUSY, about="GPUs with a utilisation above 0, or with a MIG instance that has one."),
    stat("In use by pods", _IN_USE),
    stat("Power", _summed("DCGM_FI_DEV_POWER_USAGE"), "watt"),
    stat("Energy", f"sum(increase({_ENERGY}[$__range])) / 3.6e9", "kwatth", about="Used in the time shown."),
    stat("Hottest GPU", f"max({_of('DCGM_FI_DEV_GPU_TEMP')})", "celsius", warn=80, alarm=88),
    Panel(
        "Utilisation", [Query(f"avg({_MEANS})")], "percent", kind="gauge", width=4, height=8, most=100,
        about="Of a divided GPU it is the mean of its MIG instances.",
    ),
    Panel(
        "Memory in use", [Query(f"sum({_USED}) / (sum({_USED}) + sum({_FREE}))")], "percentunit", kind="gauge", width=4,
        height=8, most=1, warn=0.9,
    ),
    curves("GPUs", "short", (_count(), "all"), (_IN_USE, "in use by pods"), (_BUSY, "busy")),
    curves(
        "Utilisation", "percent", (f"avg({_MEANS})", "mean"), (f"quantile(0.95, {_MEANS})", "95th percentile"),
        (f"max({_MEANS})", "highest"), most=100,
    ),
    curves(
        "Power by node", "watt",
        _by_node(f"sum by (Hostname) ({_cards(_of('DCGM_FI_DEV_POWER_USAGE'))})"), stack=True,
    ),
    curves("Utilisation by node", "percent", _by_node(f"avg by (Hostname) ({_MEANS})"), most=100),
    curves("Memory by node", "decmbytes", _by_node(f"sum by (Hostname) ({_USED})")),
)  # fmt: skip


def _of_pods(how: str, expression: str) -> str:
    """A value for each pod, of those of its cards."""
    return f"{how} by ({_BY_POD}) ({expression})"


_PODS = (
    Panel(
        "Pods", [
            Query(_count(_HELD, by=_BY_POD), "GPUs"),
            Query(_of_pods("avg", _cards(_utilisation(_HELD), "avg", by=_BY_POD)), "Utilisation"),
            Query(_of_pods("sum", _of("DCGM_FI_DEV_FB_USED", _HELD)), "Memory"),
            Query(_of_pods("sum", _cards(_of("DCGM_FI_DEV_POWER_USAGE", _HELD), by=_BY_POD)), "Power"),
        ], "short,percent,decmbytes,watt", kind="table", width=14, height=10,
        about="A GPU counts whole for each pod that has MIG instances of it, and so does its power.",
    ),
    curves(
        "GPUs by namespace", "short", (_count(_HELD, by=_NAMESPACE), f"{{{{{_NAMESPACE}}}}}"),
        width=10, height=10, stack=True,
    ),
)  # fmt: skip

_GPUS = (
    curves("Utilisation", "percent", _each_instance(_utilisation()), most=100),
    curves("Power", "watt", _each("DCGM_FI_DEV_POWER_USAGE")),
    curves("Temperature", "celsius", _each("DCGM_FI_DEV_GPU_TEMP"), warn=80, alarm=88),
    curves("SM clock", "rotmhz", _each("DCGM_FI_DEV_SM_CLOCK")),
    curves("Memory in use", "decmbytes", _each_instance(_of("DCGM_FI_DEV_FB_USED"))),
    curves("Memory temperature", "celsius", _each("DCGM_FI_DEV_MEMORY_TEMP"), warn=90, alarm=95),
    curves("Tensor pipe active", "percentunit", _each_instance(_of("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE")), most=1),
    curves("Memory interface active", "percentunit", _each_instance(_of("DCGM_FI_PROF_DRAM_ACTIVE")), most=1),
    curves("Graphics engine active", "percentunit", _each_instance(_of("DCGM_FI_PROF_GR_ENGINE_ACTIVE")), most=1),
)

_LINKS = (
    curves("PCIe received", "Bps", _each_instance(_of("DCGM_FI_PROF_PCIE_RX_BYTES"))),
    curves("PCIe sent", "Bps", _each_instance(_of("DCGM_FI_PROF_PCIE_TX_BYTES"))),
    curves("NVLink", "MBs", _each("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", "sum")),
    stat("GPUs with an XID error", f"count({_cards(_of('DCGM_FI_DEV_XID_ERRORS'))} > 0) or vector(0)", alarm=1),
    stat("Failed row remaps", _summed("DCGM_FI_DEV_ROW_REMAP_FAILURE"), alarm=1),
    stat("Rows remapped, uncorrectable", _summed("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS"), warn=1),
    stat("Rows remapped, correctable", _summed("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS"), warn=1),
    stat("PCIe retries", _summed("DCGM_FI_DEV_PCIE_REPLAY_COUNTER"), warn=1),
)

DASHBOARD = Dashboard(
    "simgpu-dcgm", "GPUs (DCGM)",
    "A fleet of NVIDIA GPUs as dcgm-exporter reports it: totals, pods, and the most used GPUs of the chosen nodes.",
    (
        Variable("node", "Node", "DCGM_FI_DEV_GPU_TEMP", "Hostname"),
        Variable("model", "Model", "DCGM_FI_DEV_GPU_TEMP", "modelName"),
        Variable("prefix", "Prefix of the pod's labels", options=("exported_", "")),
    ),
    (
        Row("Fleet", _FLEET),
        Row("Pods", _PODS),
        Row(f"GPUs: the {_MOST} highest of the chosen nodes", _GPUS),
        Row("Links and errors", _LINKS),
    ),
)  # fmt: skip
