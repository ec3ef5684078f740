"""Makes the API's answers from a frame: lists of nodes, GPUs and pods, and all about one of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

import simgpu
from simgpu.dashboard import answers, encoding, queries
from simgpu.dashboard.frames import FleetFrame, FleetLayout
from simgpu.dashboard.sources import DashboardSource
from simgpu.kube.views import Pod
from simgpu.machines.health import HEALTHY
from simgpu.machines.machine import Machine
from simgpu.machines.quantities import QUANTITIES
from simgpu.machines.users import PodRef
from simgpu.pods import requests
from simgpu.sim import physics
from simgpu.vocabulary import MAX_API_ITEMS

_REASONS = {
    physics.POWER_CAP: "power cap", physics.SOFTWARE_THERMAL: "heat", physics.HARDWARE_THERMAL: "heat (hardware)",
    physics.HARDWARE_SLOWDOWN: "hardware slowdown", physics.IDLE: "idle",
}  # fmt: skip
_READINGS = {
    "utilization": "usage_exact", "memory_utilization": "memory_usage_exact", "sm_active": "sm_active",
    "tensor_active": "tensor_active", "dram_active": "dram_active", "sm_clock_mhz": "sm_clock",
    "sm_clock_max_mhz": "sm_clock_max", "memory_clock_mhz": "memory_clock", "memory_clock_max_mhz": "memory_clock_max",
    "power_w": "power", "power_instant_w": "power_instant", "power_limit_w": "power_limit",
    "temperature_c": "temperature", "memory_temperature_c": "memory_temperature",
    "temperature_max_c": "temperature_max", "temperature_slowdown_c": "temperature_slowdown",
    "fan_percent": "fan_speed", "memory_used_mib": "fb_used", "memory_free_mib": "fb_free",
    "memory_total_mib": "fb_total", "pcie_bytes_per_second": "pcie_rate", "link_bytes_per_second": "fabric_rate",
}  # fmt: skip
_COUNTERS = {
    "energy_j": "energy", "pcie_bytes": "pcie_bytes", "link_bytes": "fabric_bytes",
    "power_throttled_s": "power_throttle", "heat_throttled_s": "thermal_throttle",
}  # fmt: skip
_ERRORS = {
    "xid": "xid", "hangs": "hangs", "corrected_memory_errors": "corrected", "uncorrected_memory_errors": "uncorrected",
}  # fmt: skip


def fleet(source: DashboardSource, frame: FleetFrame) -> answers.FleetSummary:
    """Return the summary of everything."""
    layout = frame.layout
    return answers.FleetSummary(
        source.role, simgpu.__version__, round(frame.time, 3), frame.step, frame.totals(),
        layout.gpus_by_pool(), layout.gpus_by_model(),
    )  # fmt: skip


# Lists.


class Matches:
    """Which GPUs a query means."""

    def __init__(self, source: DashboardSource, frame: FleetFrame, query: dict[str, str]) -> None:
        self._source, self._frame, self._query = source, frame, query

    def places(self) -> npt.NDArray[np.intp]:
        """Return the places of GPUs that match, in order."""
        frame, query, layout = self._frame, self._query, self._frame.layout
        chosen = np.zeros(len(layout.node_of), bool)
        chosen[layout.within(pool=query.get("pool", ""), model=query.get("model", ""))] = True
        if node := query.get("node", ""):
            chosen &= layout.node_of == layout.number.get(node, -1)
        if namespace := query.get("namespace", ""):
            chosen &= _mask(layout, self._held_by(lambda pod: pod.namespace == namespace))
        if state := query.get("health", ""):
            chosen &= frame.cells("health") == queries.HEALTH.index(state)
        if text := query.get("q", "").lower():
            chosen &= self._containing(text)
        return np.flatnonzero(chosen)

    def _containing(self, text: str) -> npt.NDArray[np.bool_]:
        layout = self._frame.layout
        named = np.array([text in name.lower() for name in layout.names], dtype=bool)[layout.node_of]
        named |= _mask(layout, self._held_by(lambda pod: text in f"{pod.namespace}/{pod.name}".lower()))
        return named | _mask(layout, layout.with_id(text))

    def _held_by(self, wanted: Callable[[PodRef], bool]) -> Iterator[int]:
        """Yield the places of some pods: all that have a part of a GPU, and owners that are configured."""
        for pod, places in self._source.pod_places(self._frame.machine).items():
            if wanted(pod):
                yield from places
        yield from (place for place, pod in self._frame.owners.items() if wanted(pod))


def _mask(layout: FleetLayout, places: Iterable[int]) -> npt.NDArray[np.bool_]:
    found = np.zeros(len(layout.node_of), bool)
    found[np.fromiter(places, dtype=np.intp)] = True
    return found


_MAX_HITS = 4  # of each kind


def search(source: DashboardSource, frame: FleetFrame, query: dict[str, str]) -> answers.SearchResult:
    """Return what a text means."""
    layout, text = frame.layout, query["q"].strip().lower()
    if not text:
        return answers.SearchResult(0, "", [])
    shown = layout.within(pool=query["pool"], model=query["model"])
    matching = np.isin(shown, Matches(source, frame, {"q": text}).places())
    places = np.flatnonzero(matching)
    named = [name for name in layout.names if text in name.lower()][:_MAX_HITS]
    hits = [answers.SearchHit("node", name, name) for name in named]
    for pod, at in source.pod_places(frame.machine).items():
        name = f"{pod.namespace}/{pod.name}"
        if text in name.lower():
            hits.append(answers.SearchHit("pod", name, *_where(layout, at[0])))
            if len(hits) == len(named) + _MAX_HITS:
                break
    if not hits:
        found = shown[places[:_MAX_HITS]].tolist()
        devices = layout.machine.devices
        hits += [answers.SearchHit("gpu", devices[place].uuid, *_where(layout, place)) for place in found]
    return answers.SearchResult(len(places), encoding.packed(encoding.gaps(places)), hits)


def _where(layout: FleetLayout, place: int) -> tuple[str, int]:
    number = int(layout.node_of[place])
    return layout.names[number], place - int(layout.firsts[number])


def gpus(
    source: DashboardSource, frame: FleetFrame, query: dict[str, str], *, limit: int, offset: int
) -> tuple[int, list[answers.GpuSummary]]:
    """Return how many GPUs match, and a part of them."""
    places = Matches(source, frame, query).places()
    return len(places), [gpu(source, frame, place) for place in places[offset : offset + limit].tolist()]


def gpu(source: DashboardSource, frame: FleetFrame, place: int) -> answers.GpuSummary:
    """Return one GPU of the whole machine."""
    layout = frame.layout
    number = int(layout.node_of[place])
    return _summary(source, frame, layout.machine, place, (layout.names[number], layout.pools[number]))


def _summary(
    source: DashboardSource, frame: FleetFrame, machine: Machine, place: int, where: tuple[str, str]
) -> answers.GpuSummary:
    """Return a GPU of any machine: the whole one, or that of a node."""
    device = machine.devices[place]
    faults = frame.faults.get(device.uuid, HEALTHY)
    reasons = int(machine.column("reasons")[place])
    throttled = any(reasons & mask for mask in _REASONS if mask != physics.IDLE)
    lost = _is_lost(frame, machine, place)
    state = "lost" if lost else "unhealthy" if faults.unhealthy else ""

    def value(name: str) -> float:
        return 0.0 if lost else _number(machine.column(name)[place])

    return answers.GpuSummary(
        id=device.uuid, node=where[0], index=device.index, model=device.model.product, pool=where[1],
        health=state or ("throttled" if throttled else "healthy"), problem=faults.problem,
        utilization=min(100.0, max(0.0, round(value("usage")))), power_w=value("power_average"),
        power_limit_w=_number(machine.column("limit")[place]), temperature_c=value("temperature"),
        memory_used_mib=value("memory_used"),
        memory_total_mib=float(device.model.memory_mib.total), numa=device.numa, owners=source.owners(machine, place),
    )  # fmt: skip


def _is_lost(frame: FleetFrame, machine: Machine, place: int) -> bool:
    """Return whether a GPU of any machine has fallen off the bus, and so has no readings."""
    return bool(machine.lost[place]) or frame.faults.get(machine.devices[place].uuid, HEALTHY).lost


def nodes(
    source: DashboardSource, frame: FleetFrame, query: dict[str, str], *, limit: int, offset: int
) -> tuple[int, list[answers.NodeSummary]]:
    """Return how many nodes have GPUs that match, and a part of them."""
    layout = frame.layout
    chosen = np.zeros(len(layout.names), bool)
    chosen[layout.node_of[Matches(source, frame, query).places()]] = True
    found = [number for number in layout.order if chosen[number]]
    return len(found), [node(frame, number) for number in found[offset : offset + limit]]


def node(frame: FleetFrame, number: int) -> answers.NodeSummary:
    """Return one node, by number."""
    layout, machine = frame.layout, frame.machine
    first = int(layout.firsts[number])
    part = slice(first, first + layout.counts[number])
    usage, health = frame.usage[part], frame.cells("health")[part]

    def total(values: npt.NDArray[np.float64]) -> float:
        return _number(np.nansum(values[part]))

    return answers.NodeSummary(
        name=layout.names[number], pool=layout.pools[number],
        models=list(dict.fromkeys(device.model.product for device in machine.devices[part])),
        gpus=layout.counts[number], busy=int(np.count_nonzero(usage)),
        allocated=sum(place in frame.owners for place in range(part.start, part.stop)),
        unhealthy=int(np.count_nonzero(health > 1)), utilization=_number(usage.mean()),
        power_w=total(frame.column("power_average")), memory_used_mib=total(frame.column("memory_used")),
        memory_total_mib=total(machine.fact("memory_mib.total")),
        temperature_max_c=_number(np.nanmax(frame.column("temperature")[part])),
    )  # fmt: skip


# One node, one GPU.


def node_detail(source: DashboardSource, frame: FleetFrame, name: str) -> answers.NodeDetail | None:
    """Return all about a node; None if there is none."""
    machine, number = source.machine_of(name), frame.layout.number.get(name)
    if machine is None or number is None:
        return None
    where = (name, frame.layout.pools[number])
    shown = range(min(len(machine.devices), MAX_API_ITEMS))
    parts, links = instances(frame, machine), _links(machine)
    driver, cuda = source.versions_of(name)
    return answers.NodeDetail(
        summary=node(frame, number), time=round(frame.time, 3), driver=driver, cuda=cuda,
        gpus=[_summary(source, frame, machine, place, where) for place in shown],
        instances={machine.devices[place].uuid: found for place, found in parts.items()},
        links={machine.devices[place].uuid: found for place, found in links.items()},
        pods=_pods_of(source, machine, name),
        events=events(source, name)[-20:],
    )  # fmt: skip


def events(source: DashboardSource, node: str) -> list[answers.RecordedEvent]:
    """Return recent events, oldest first: all, or those of a node and of pods that have its GPUs."""
    if not node:
        return list(source.events())
    machine = source.machine_of(node)
    held = () if machine is None else source.pod_places(machine)
    wanted = {("Node", "", node), *(("Pod", pod.namespace, pod.name) for pod in held)}
    return [event for event in source.events() if (event.kind, event.namespace, event.name) in wanted]


def gpu_detail(source: DashboardSource, frame: FleetFrame, node: str, index: int) -> answers.GpuDetail | None:
    """Return all about a GPU of a node, by index; None if there is none."""
    machine, number = source.machine_of(node), frame.layout.number.get(node)
    if machine is None or number is None or not 0 <= index < len(machine.devices):
        return None
    device, lost = machine.devices[index], _is_lost(frame, machine, index)
    reasons = 0 if lost else int(machine.column("reasons")[index])
    return answers.GpuDetail(
        summary=_summary(source, frame, machine, index, (node, frame.layout.pools[number])),
        time=round(frame.time, 3), architecture=device.model.architecture, file=device.file,
        pci_bus_id=device.pci_bus_id, serial=device.serial,
        reasons=[text for mask, text in _REASONS.items() if reasons & mask],
        readings={} if lost else _values(machine, index, _READINGS), counters=_values(machine, index, _COUNTERS),
        errors=_values(machine, index, _ERRORS), instances=instances(frame, machine).get(index, []),
        links=_links(machine).get(index, []),
    )  # fmt: skip


def _values(machine: Machine, place: int, names: dict[str, str]) -> dict[str, float]:
    found = ((name, float(QUANTITIES[quantity](machine)[place])) for name, quantity in names.items())
    return {name: round(value, 3) for name, value in found if math.isfinite(value)}


def instances(frame: FleetFrame, machine: Machine) -> dict[int, list[answers.GpuInstance]]:
    """Return the MIG instances or tiles of each GPU that is divided, by place; those of a lost one do nothing."""
    found: dict[int, list[answers.GpuInstance]] = {}
    if machine.parts:
        busy, memory = machine.part_column("usage"), machine.part_column("memory_mib")
        for row, part in enumerate(machine.parts):
            lost = _is_lost(frame, machine, part.device)
            values = (0.0, 0.0) if lost else (min(100.0, _number(busy[row])), _number(memory[row]))
            found.setdefault(part.device, []).append(answers.GpuInstance(part.id, part.profile, *values))
    return found


def _links(machine: Machine) -> dict[int, list[answers.GpuLink]]:
    found: dict[int, list[answers.GpuLink]] = {}
    if len(machine.devices) <= MAX_API_ITEMS:
        for link in machine.links:
            found.setdefault(link.device, []).append(answers.GpuLink(machine.devices[link.peer].index, link.ports))
    return found


# Pods.


def pods(
    source: DashboardSource,
    frame: FleetFrame,
    pending: Sequence[Pod],
    query: dict[str, str],
    *,
    limit: int,
    offset: int,
) -> tuple[int, list[answers.PodSummary]]:
    """Return how many pods match, and a part of them: those that wait for GPUs first, then those with some, by name."""
    places, phase = source.pod_places(frame.machine), query.get("phase", "")
    having = {pod.uid for pod in places} if pending else set()  # GPUs: since the list of pending ones was read
    waiting: list[answers.PodSummary] = []
    if phase in ("", "Pending"):
        renamed = source.renamed_resources()
        new = (
            _pending(pod, renamed) for pod in pending if pod.metadata.uid not in having and waits_for_gpus(pod, renamed)
        )
        waiting = [item for item in new if _wanted(item, query)]
    by_id = frame.layout.with_id(query["q"].lower()) if query.get("q") else frozenset[int]()
    held = sorted(
        (
            pod
            for pod, at in places.items()
            if _matches(frame, pod, at, query, by_id) and (not phase or phase == _phase(source.pod(pod)))
        ),
        key=lambda pod: (pod.namespace, pod.name),
    )
    shown: list[answers.PodSummary] = waiting[offset : offset + limit]
    start = max(0, offset - len(waiting))
    some = {pod: places[pod] for pod in held[start : start + limit - len(shown)]}
    names, node_of = frame.layout.names, frame.layout.node_of
    shown += _running(source, frame.machine, some, lambda place: names[int(node_of[place])])
    return len(waiting) + len(held), shown


def _wanted(pod: answers.PodSummary, query: dict[str, str]) -> bool:
    text, namespace = query.get("q", "").lower(), query.get("namespace", "")
    return text in f"{pod.namespace}/{pod.name}".lower() and namespace in ("", pod.namespace) and not query.get("node")


def _matches(
    frame: FleetFrame, pod: PodRef, places: Sequence[int], query: dict[str, str], by_id: frozenset[int]
) -> bool:
    """Return whether a pod with GPUs is meant; `by_id` are the places of GPUs whose id contains the text."""
    text, namespace, node = query.get("q", "").lower(), query.get("namespace", ""), query.get("node", "")
    if namespace and pod.namespace != namespace:
        return False
    if not text and not node:
        return True
    own = frame.layout.names[int(frame.layout.node_of[places[0]])]
    named = text in f"{pod.namespace}/{pod.name}".lower() or text in own.lower()
    return node in ("", own) and (named or not by_id.isdisjoint(places))


def waits_for_gpus(pod: Pod, renamed: Collection[str]) -> bool:
    """Return whether a pending pod requests GPUs, or may by a claim; `renamed` are other names of GPUs' resources."""
    return bool(requests.requested(pod, renamed)[0] or pod.spec.resource_claims)


def _pending(pod: Pod, renamed: Collection[str]) -> answers.PodSummary:
    gpus, instances = requests.requested(pod, renamed)
    placing = next((item for item in pod.status.conditions if item.type == "PodScheduled"), None)
    return answers.PodSummary(
        pod.metadata.namespace, pod.metadata.name, "", "Pending", pod.metadata.creation_timestamp or "",
        gpus, [], 0.0, 0.0, placing.reason if placing else "",
        placing.message[:1000] if placing else "not looked at yet", instances,
    )  # fmt: skip


def _pods_of(source: DashboardSource, machine: Machine, node: str) -> list[answers.PodSummary]:
    found = itertools.islice(source.pod_places(machine).items(), MAX_API_ITEMS)
    return _running(source, machine, dict(found), lambda _place: node)


def _running(
    source: DashboardSource, machine: Machine, pods: Mapping[PodRef, Sequence[int]], node_of: Callable[[int], str]
) -> list[answers.PodSummary]:
    """Return pods that have GPUs, with their places; `node_of` returns the node of a place."""
    shown = []
    for (pod, places), use in zip(pods.items(), source.pod_uses(machine, pods), strict=True):
        known = source.pod(pod)
        shown.append(answers.PodSummary(
            pod.namespace, pod.name, node_of(places[0]), _phase(known),
            (known.status.start_time or "") if known else "", len(places),
            [machine.devices[place].uuid for place in places[:64]],
            min(100.0, _number(round(use.percent / max(1, len(places)), 1))), _number(round(use.memory_mib, 1)),
            instances=use.instances,
        ))  # fmt: skip
    return shown


def _phase(known: Pod | None) -> str:
    """Return the phase of a pod that has GPUs: Pending until its containers start."""
    return known.status.phase if known else "Running"


def _number(value: float) -> float:
    """Return a value as JSON has it: there is no NaN."""
    found = float(value)
    return round(found, 2) if math.isfinite(found) else 0.0
