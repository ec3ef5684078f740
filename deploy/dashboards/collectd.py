"""The dashboard of the identity collectd (its plugin gpu_sysman)."""

from __future__ import annotations

from deploy.dashboards.grafana import Dashboard, Panel, Query, Row, Variable, curves, stat

_MOST = 16  # curves in one panel
_PLUGIN = "collectd_gpu_sysman"
_NAME = "{{instance}} {{dev_file}}"
_TILE = f"{_NAME} tile {{{{sub_dev}}}}"
_CHOSEN = ('instance=~"$instance"', 'dev_name=~"$model"')


def _of(metric: str, *more: str) -> str:
    """A metric of the chosen hosts and models."""
    return f"{_PLUGIN}_{metric}{{{','.join((*_CHOSEN, *more))}}}"


def _card(expression: str, how: str = "max") -> str:
    """One value for each card, of its tiles."""
    return f"{how} by (instance, dev_file) ({expression})"


def _each(expression: str, legend: str = _NAME) -> tuple[str, str]:
    return f"topk({_MOST}, {expression})", legend


def _rate(expression: str) -> str:
    return f"rate({expression}[$__rate_interval])"


_BUSY = _card(_of("engine_ratio", 'type="all"'), "avg")
_POWER = _of("power_watts", 'sub_dev=""')
_ENERGY = _of("energy_joules_total", 'sub_dev=""')
_HEAT = _card(_of("temperature_celsius", 'location="gpu-max"'))
_USED = _card(_of("memory_used_bytes", 'function="max"'), "sum")

_FLEET = (
    stat("GPUs", f"count({_BUSY})"),
    stat("Busy", f"count({_BUSY} > 0) or vector(0)", about="GPUs with an engine at work."),
    stat("Throttled", f"sum({_card(_of('throttled_ratio'), 'avg')})", warn=1,
         about="GPUs whose clock is held back, by the share of time."),
    stat("Power", f"sum({_POWER})", "watt"),
    stat("Energy", f"sum(increase({_ENERGY}[$__range])) / 3.6e6", "kwatth",
         about="Used in the time shown."),
    stat("Hottest GPU", f"max({_HEAT})", "celsius", warn=85, alarm=95),
    Panel("Engines", [Query(f"avg({_BUSY})")], "percentunit", kind="gauge", width=4, most=1),
    Panel("Memory in use", [Query(f"avg({_of('memory_usage_ratio')})")], "percentunit", kind="gauge", width=4, most=1,
          warn=0.9),
    curves("Engines", "percentunit", (f"avg({_BUSY})", "mean"), (f"quantile(0.95, {_BUSY})", "95th percentile"),
           (f"max({_BUSY})", "highest"), most=1),
    curves("Power by host", "watt", _each(f"sum by (instance) ({_POWER})", "{{instance}}"), stack=True),
)  # fmt: skip

_GPUS = (
    curves("Engines", "percentunit", _each(_BUSY), most=1),
    curves("Power", "watt", _each(_POWER)),
    curves("Power against the sustained limit", "percentunit", _each(_of("power_ratio", 'limit="sustained"')), most=1),
    curves("Temperature", "celsius", _each(_HEAT), warn=85, alarm=95),
    curves("Memory temperature", "celsius", _each(_card(_of("temperature_celsius", 'location="memory-max"')))),
    curves("Memory in use", "bytes", _each(_USED)),
    curves(
        "Clock", "rotmhz",
        _each(_card(_of("frequency_mhz", 'function="max"', 'location="gpu"', 'type="actual"')), f"{_NAME} actual"),
        _each(_card(_of("frequency_mhz", 'function="max"', 'location="gpu"', 'type="request"')), f"{_NAME} requested"),
    ),
    curves("Time throttled", "percentunit", _each(_rate(_of("throttled_seconds_total")), _TILE), most=1),
    curves("Engines by kind", "percentunit", (f"avg by (type) ({_of('engine_ratio')})", "{{type}}"), most=1),
)  # fmt: skip

_LINKS = (
    curves("Memory bandwidth", "Bps", _each(_card(_rate(_of("memory_bw_bytes_total")), "sum"))),
    curves("Memory bandwidth, share of the highest", "percentunit",
           _each(_of("memory_bw_ratio"), f"{_TILE} {{{{direction}}}}"), most=1),
    curves("Ports of the fabric", "Bps", _each(_card(_rate(_of("fabric_port_bytes_total")), "sum"))),
    curves("Errors", "short", (f"sum by (type) ({_of('all_errors_total')})", "all, {{type}}"),
           (f"sum({_of('resets_total')})", "resets"), width=24),
)  # fmt: skip

DASHBOARD = Dashboard(
    "simgpu-collectd", "GPUs (collectd)",
    "Intel GPUs as collectd's plugin gpu_sysman reports them: totals, and the most used GPUs of the chosen hosts.",
    (
        Variable("instance", "Host", f"{_PLUGIN}_power_watts", "instance"),
        Variable("model", "Model", f"{_PLUGIN}_power_watts", "dev_name"),
    ),
    (
        Row("Fleet", _FLEET),
        Row(f"GPUs: the {_MOST} highest of the chosen hosts", _GPUS),
        Row("Memory, links and errors", _LINKS),
    ),
)  # fmt: skip
