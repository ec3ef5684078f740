"""Draws the picture of the guide on MIG from a simulated node: `python -m docs.mig_picture`.

One H200 with a pod on all of it, then idle, then divided by the layout `all-balanced` with a pod on each of three
instances.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib import pyplot
from matplotlib.axes import Axes

from simgpu.catalog import models, placing
from simgpu.machines.fleet import Fleet
from simgpu.machines.users import PodRef, Range, User
from simgpu.topology import mig_choice, mig_layouts, reading
from simgpu.topology.devices import Device
from simgpu.topology.pools import NodeGpus

PICTURE = Path(__file__).parent / "images" / "mig.png"
ENDS, DIVIDED, STARTS, LAST = 40, 60, 80, 160  # seconds
BUSY = {2: ("train", 90, "tab:blue"), 4: ("batch", 60, "tab:orange"), 7: ("serve", 30, "tab:green")}  # by number
FREE = "lightgray"


def main() -> None:
    """Draw it."""
    mpl.use("Agg")
    topology = reading.parse("nodePools: {p: {gpus: [{type: h200}]}}", models.load())
    pool = topology.pools["p"]
    divided = mig_choice.apply(mig_choice.LayoutChoice("nvidia.com/mig.config", "all-balanced"), pool, topology)
    figure, axes = pyplot.subplots(3, 1, figsize=(9, 6.4), height_ratios=(1.1, 2, 2))
    _draw_slices(axes[0], divided)
    _draw_series(axes[1], axes[2], pool, divided)
    figure.tight_layout()
    figure.savefig(PICTURE, dpi=110)


def _draw_slices(on: Axes, divided: NodeGpus) -> None:
    """The eight slices of memory before and after."""
    model, layout = divided.gpus[0].model, divided.gpus[0].layout
    on.broken_barh([(0, 7.94)], (1.1, 0.8), color="tab:red", alpha=0.75)
    on.text(4, 1.5, "NVIDIA H200: nvidia.com/gpu", ha="center", va="center")
    for profile, start in zip(layout.instances, layout.starts, strict=True):
        size, number = placing.memory_slices(profile, model), placing.placed(profile, model, start).number
        color = BUSY[number][2] if number in BUSY else FREE
        on.broken_barh([(start, size - 0.06)], (0, 0.8), color=color, alpha=0.75)
        name = mig_layouts.resource_name(profile.name).partition("/")[2]
        on.text(start + size / 2, 0.4, name, ha="center", va="center", fontsize=9 if size > 1 else 7)
    on.set_yticks([1.5, 0.4], ["all-disabled", "all-balanced"])
    on.set_xticks(np.arange(8) + 0.5, [str(number) for number in range(8)])
    on.set_title("memory slices of the card", fontsize=10)
    on.set_xlim(0, 8)
    on.spines[:].set_visible(False)
    on.tick_params(length=0)


def _draw_series(above: Axes, below: Axes, pool: NodeGpus, divided: NodeGpus) -> None:
    """How busy card and instances are, and the card's power, as an exporter has them."""
    fleet = Fleet(seed=1)
    times, power = list[float](), list[float]()
    busy: dict[int | None, list[tuple[float, float]]] = {}
    node = fleet.place("node-1", pool)
    fleet.use(node, {node.ids[0]: (_user("whole", 95),)})
    for now in range(1, LAST):
        if now == ENDS:
            fleet.use(node, {})
        elif now == DIVIDED:
            node = fleet.place("node-1", divided)
        elif now == STARTS:
            users = tuple(_user(name, usage, number) for number, (name, usage, _) in BUSY.items())
            fleet.use(node, {node.ids[0]: users})
        fleet.step(float(now), clock=float(now))
        machine = fleet.machine()
        times.append(now)
        power.append(float(machine.column("power_average")[0]))
        if not machine.parts:
            busy.setdefault(None, []).append((now, float(machine.column("usage")[0])))
        for part, usage in zip(machine.parts, machine.part_column("usage") if machine.parts else (), strict=True):
            busy.setdefault(part.id, []).append((now, float(usage)))
    for number, points in busy.items():
        color = "tab:red" if number is None else BUSY[number][2] if number in BUSY else FREE
        above.plot(*zip(*points, strict=True), color=color, label=_label(number, node.cards[0].device))
    below.plot(times, power, color="black")
    for on, title in ((above, "card, instances busy, %"), (below, "power of the card, W")):
        on.axvline(DIVIDED, color="gray", linestyle=":")
        on.set_ylabel(title)
        on.set_xlim(0, LAST)
        on.set_ylim(bottom=0)
        on.grid(alpha=0.3)
    above.legend(fontsize=8, loc="center", bbox_to_anchor=((ENDS + STARTS) / 2 / LAST, 0.62))
    below.text(DIVIDED + 1, 300, "mig.config:\nall-balanced", fontsize=8)
    below.set_xlabel("seconds")


def _user(name: str, usage: int, part: int | None = None) -> User:
    return User(PodRef(name, "team", "main", name), Range(usage, usage), 1000, part=part)


def _label(number: int | None, device: Device) -> str:
    if number is None:
        return "GPU_UTIL"
    profiles = {place.number: item.name for place, item in zip(device.placements(), device.instances, strict=True)}
    return f"{profiles[number]}, GPU_I_ID {number}"


if __name__ == "__main__":
    main()
