"""Device files of simulated GPUs: which there are, and making them, for which root needs CAP_MKNOD.

There is no driver behind them: opening one fails. Programs look for them by name, and container runtimes make them in
containers. All have NVIDIA's own major number, which no other driver gets; `nvidia-uvm` and `nvidia-cap<number>`, whose
major numbers differ from machine to machine, have high minor numbers of it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from simgpu.node import driver_texts
from simgpu.topology.devices import Device

MAJOR = 195

_CONTROL, _MODESET, _UVM, _UVM_TOOLS, _CAPABILITIES = 255, 254, 256, 257, 1024  # minor numbers, or the first of them


class DeviceNode(msgspec.Struct, frozen=True):
    """A device file: its path below `/dev`, its minor number, and its mode."""

    path: str
    minor: int
    mode: int = 0o666


def nodes(devices: Sequence[Device]) -> Iterator[DeviceNode]:
    """Yield the device files of a machine with these GPUs; each instance, GPU or compute, has one."""
    yield DeviceNode("nvidiactl", _CONTROL)
    yield DeviceNode("nvidia-modeset", _MODESET)
    yield DeviceNode("nvidia-uvm", _UVM)
    yield DeviceNode("nvidia-uvm-tools", _UVM_TOOLS)
    yield _capability(driver_texts.MIG_CONFIG, driver_texts.OWNERS_ONLY)
    yield _capability(driver_texts.MIG_MONITOR, driver_texts.READABLE)
    for device in devices:
        yield DeviceNode(f"nvidia{device.index}", device.index)
        for _, minor in driver_texts.instance_minors(device):
            yield _capability(minor, driver_texts.READABLE)


def _capability(minor: int, mode: int) -> DeviceNode:
    return DeviceNode(f"nvidia-caps/nvidia-cap{minor}", _CAPABILITIES + minor, mode)


def is_free(listed: str) -> bool:
    """Whether no driver has the major number, by the text of `/proc/devices`: a file would open a real GPU."""
    characters = listed.partition("Block devices")[0]
    return not any(line.split()[:1] == [str(MAJOR)] for line in characters.splitlines())


def make(path: Path, node: DeviceNode) -> None:
    """Make a device file, unless it is there; `PermissionError` where that is not allowed."""
    wanted = os.makedev(MAJOR, node.minor)
    try:
        found = path.lstat()
    except FileNotFoundError:
        pass
    else:
        if stat.S_ISCHR(found.st_mode) and found.st_rdev == wanted and stat.S_IMODE(found.st_mode) == node.mode:
            return
        path.unlink()
    os.mknod(path, stat.S_IFCHR | node.mode, wanted)
    path.chmod(node.mode)
