"""The dashboard of the identity xpum (Intel XPU Manager)."""

from __future__ import annotations

from deploy.dashboards.grafana import Dashboard, Panel, Query, Row, Variable, curves, stat

_MOST = 16  # curves in one panel
_NAME = "{{node}} {{dev_file}}"
_TILE = f"{_NAME} tile {{{{sub_dev}}}}"
_CHOSEN = ('node=~"$node"', 'dev_name=~"$model"')


def _of(metric: str, *more: str) -> str:
    """A metric of the chosen nodes and models."""
    return f"{metric}{{{','.join((*_CHOSEN, *more))}}}"


def _card(metric: str, *more: str) -> str:
    """A metric of whole cards: XPU Manager has the same for their tiles, and power once more without a device."""
    return _of(metric, 'sub_dev=""', 'dev_file!=""', *more)


def _each(expression: str, legend: str = _NAME) -> tuple[str, str]:
    return f"topk({_MOST}, {expression})", legend


def _rate(expression: str) -> str:
    return f"rate({expression}[$__rate_interval])"


_BUSY, _POWER, _USED = _card("xpum_engine_ratio"), _card("xpum_power_watts"), _card("xpum_memory_used_bytes")
_HEAT = _card("xpum_temperature_celsius", 'location="gpu"')
_HELD = 'kube_pod!=""'
_BY_POD = "by (kube_namespace, kube_pod)"

_FLEET = (
    stat("GPUs", f"count({_BUSY})"),
    stat("Busy", f"count({_BUSY} > 0) or vector(0)", about="GPUs with an engine at work."),
    stat("In use by pods", f"count({_card('xpum_engine_ratio', _HELD)}) or vector(0)"),
    stat("Power", f"sum({_POWER})", "watt"),
    stat("Energy", f"sum(increase({_card('xpum_energy_joules_total')}[$__range])) / 3.6e6", "kwatth",
         about="Used in the time shown."),
    stat("Hottest GPU", f"max({_HEAT})", "celsius", warn=85, alarm=95),
    Panel("Engines", [Query(f"avg({_BUSY})")], "percentunit", kind="gauge", width=4, most=1),
    Panel("Memory in use", [Query(f"avg({_card('xpum_memory_ratio')})")], "percentunit", kind="gauge", width=4, most=1,
          warn=0.9),
    curves("Engines", "percentunit", (f"avg({_BUSY})", "mean"), (f"quantile(0.95, {_BUSY})", "95th percentile"),
           (f"max({_BUSY})", "highest"), most=1),
    curves("Power by node", "watt", _each(f"sum by (node) ({_POWER})", "{{node}}"), stack=True),
)  # fmt: skip

_PODS = (
    Panel(
        "Pods", [
            Query(f"count {_BY_POD} ({_card('xpum_engine_ratio', _HELD)})", "GPUs"),
            Query(f"avg {_BY_POD} ({_card('xpum_engine_ratio', _HELD)})", "Engines"),
            Query(f"sum {_BY_POD} ({_card('xpum_memory_used_bytes', _HELD)})", "Memory"),
            Query(f"sum {_BY_POD} ({_card('xpum_power_watts', _HELD)})", "Power"),
        ], "short,percentunit,bytes,watt", kind="table", width=24,
    ),
)  # fmt: skip

_GPUS = (
    curves("Engines", "percentunit", _each(_BUSY), most=1),
    curves("Power", "watt", _each(_POWER)),
    curves("Temperature", "celsius", _each(_HEAT), warn=85, alarm=95),
    curves("Memory temperature", "celsius", _each(_card("xpum_temperature_celsius", 'location="mem"'))),
    curves("Memory in use", "bytes", _each(_USED)),
    curves(
        "Clock", "rotmhz", _each(_card("xpum_frequency_mhz", 'location="gpu"', 'type="actual"'), f"{_NAME} actual"),
        _each(_card("xpum_frequency_mhz", 'location="gpu"', 'type="request"'), f"{_NAME} requested"),
    ),
    curves("Execution units active", "percentunit", _each(_card("xpum_eu_active_ratio")), most=1),
    curves("Execution units stalled", "percentunit", _each(_card("xpum_eu_stall_ratio")), most=1),
    curves("Engine groups", "percentunit",
           (f"avg by (type) ({_card('xpum_engine_group_ratio')})", "{{type}}"), most=1),
)  # fmt: skip

_LINKS = (
    curves("Memory bandwidth", "percentunit", _each(_card("xpum_memory_bandwidth_ratio")), most=1),
    curves("Memory read", "Bps", _each(_rate(_card("xpum_memory_read_bytes_total")))),
    curves("Memory written", "Bps", _each(_rate(_card("xpum_memory_write_bytes_total")))),
    curves("PCIe", "Bps", _each(_rate(_of("xpum_pcie_read_bytes_total")), f"{_NAME} read"),
           _each(_rate(_of("xpum_pcie_write_bytes_total")), f"{_NAME} written")),
    curves("Xe Link sent", "Bps",
           _each(f"sum by (node, dev_file, sub_dev) ({_rate(_of('xpum_fabric_tx_bytes_total'))})", _TILE)),
    curves("Errors", "short", (f"sum by (type) ({_card('xpum_cache_errors_total')})", "cache, {{type}}"),
           (f"sum({_card('xpum_resets_total')})", "resets")),
)  # fmt: skip

DASHBOARD = Dashboard(
    "simgpu-xpum", "GPUs (XPU Manager)",
    "A fleet of Intel GPUs as XPU Manager reports it: totals, pods, and the most used GPUs of the chosen nodes.",
    (
        Variable("node", "Node", "xpum_engine_ratio", "node"),
        Variable("model", "Model", "xpum_engine_ratio", "dev_name"),
    ),
    (
        Row("Fleet", _FLEET),
        Row("Pods", _PODS),
        Row(f"GPUs: the {_MOST} highest of the chosen nodes", _GPUS),
        Row("Memory, links and errors", _LINKS),
    ),
)  # fmt: skip
