"""The driver folder: an installation of NVIDIA's driver, as the GPU Operator's driver container leaves it on a node.

It has the library with its versioned names, `nvidia-smi`, the GPUs' pages where both look for them, device files where
they can be made, and what the kernel would show below `/proc/driver` and of the GPUs below `/sys`, for root to mount
there. Pages are there as firmware files too: NVIDIA's container toolkit mounts those into every container with GPUs,
where the library finds them, and the device files that go with them.
"""

from __future__ import annotations

import logging
import os
import platform
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from simgpu import errors, vocabulary
from simgpu.node import device_nodes, driver_texts, files, pci_files
from simgpu.page import writer
from simgpu.topology.devices import Device

_MARK = ".simgpu"
_PAGES = Path(vocabulary.PAGES_DIR).relative_to("/")
_SHOWN = ("usr", "lib", "dev", "proc", "sys")  # all but the pages, which have an owner of their own
# Folders that others may have mounted: one that is made anew is not the one that they see.
_MOUNTED = ("dev", "dev/nvidia-caps", "proc/driver", "sys/bus/pci/devices")
_VERSION = re.compile(r"[0-9]{1,6}(\.[0-9]{1,6}){1,3}")
_DEVICES = Path("/proc/devices")

_log = logging.getLogger(__name__)


class DriverFolder:
    """Keeps a driver folder in line with a node's GPUs."""

    def __init__(self, root: Path, library: Path, tool: Path, *, listed: Path = _DEVICES) -> None:
        self._root = root
        self._library = library
        self._tool = tool
        self._listed = listed
        self._shown: Sequence[Device] | None = None
        self._without_nodes = ""

    @property
    def pages(self) -> Path:
        """The folder of the GPUs' pages."""
        return self._root / _PAGES

    def claim(self) -> None:
        """Mark the folder as ours; `InputError` if another driver is in it."""
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            if not (self._root / _MARK).exists() and any(self._root.iterdir()):
                raise errors.InputError(
                    "--driver-dir", f"{self._root} is in use by another driver; name another folder"
                )
            files.put(self._root / _MARK, b"", 0o644)
        except OSError as error:
            raise errors.InputError("--driver-dir", errors.explain(error)) from None

    def show(self, devices: Sequence[Device]) -> None:
        """Bring the folder in line with these GPUs, whose pages exist, unless the last call had the same."""
        if devices is self._shown:
            return
        version = (devices[0].model.driver if devices else "") or vocabulary.DEFAULT_DRIVER
        if not _VERSION.fullmatch(version):
            raise errors.InputError("driver_version", f"{errors.shown(version)}: must be numbers with points between")
        try:
            kept = {*self._programs(version)} if devices else set()
            kept.update(self._firmware(devices, version), self._nodes(devices), self._texts(devices, version))
            self._remove_others(kept)
        except OSError as error:
            raise errors.InputError("--driver-dir", errors.explain(error)) from None
        self._shown = devices

    def remove(self) -> None:
        """Remove everything in the folder, if it is ours: the mark last, or what is left would be another driver's."""
        mark = self._root / _MARK
        if mark.exists():
            files.remove_contents(self._root, last=mark.name)

    def _programs(self, version: str) -> Iterator[Path]:
        """Write library and tool."""
        name = vocabulary.LIBRARY.removesuffix(".1")
        folder = self._folder("usr/lib", f"{platform.machine()}-linux-gnu")
        files.put(folder / f"{name}.{version}", self._library.read_bytes(), 0o755)
        yield folder / f"{name}.{version}"
        yield _link(folder / vocabulary.LIBRARY, f"{name}.{version}")
        yield _link(folder / name, vocabulary.LIBRARY)
        tool = self._folder("usr/bin") / vocabulary.SMI
        files.put(tool, self._tool.read_bytes(), 0o755)
        yield tool

    def _firmware(self, devices: Sequence[Device], version: str) -> Iterator[Path]:
        """Link the pages; links lead nowhere else than within the folder, wherever it is mounted."""
        folder = self._root / "lib" / "firmware" / "nvidia" / version
        up = Path(*(".." for _ in folder.relative_to(self._root).parts))
        for device in devices:
            page = up / _PAGES / device.uuid / writer.FILE
            yield _link(self._folder(folder) / f"{vocabulary.PAGE_FIRMWARE}{device.uuid}.bin", str(page))

    def _texts(self, devices: Sequence[Device], version: str) -> Iterator[Path]:
        texts = driver_texts.texts(devices, version, machine=platform.machine()) if devices else {}
        found = {f"proc/driver/{name}": text.encode() for name, text in texts.items()}
        found |= {f"sys/bus/pci/devices/{name}": content for name, content in pci_files.files(devices).items()}
        for name, content in found.items():
            path = self._root / name
            files.put(self._folder(path.parent) / path.name, content, 0o444)
            yield path

    def _nodes(self, devices: Sequence[Device]) -> Iterator[Path]:
        problem = "" if not devices or self._has_no_driver() else "the machine has a driver of NVIDIA"
        for node in device_nodes.nodes(devices) if devices and not problem else ():
            path = self._root / "dev" / node.path
            try:
                device_nodes.make(self._folder(path.parent) / path.name, node)
            except PermissionError:
                problem = "CAP_MKNOD is missing"
                break
            yield path
        if problem and problem != self._without_nodes:
            _log.warning("%s has no device files: %s", self._root, problem)
        self._without_nodes = problem

    def _has_no_driver(self) -> bool:
        return device_nodes.is_free(self._listed.read_text())

    def _folder(self, *parts: str | Path) -> Path:
        folder = self._root.joinpath(*parts)
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _remove_others(self, kept: set[Path]) -> None:
        """Remove what earlier GPUs or versions had, and empty folders, but none that others may have mounted."""
        mounted = {self._root / name for name in _MOUNTED if not (self._without_nodes and name.startswith("dev"))}
        for name in _SHOWN:
            for found, _, names in os.walk(self._root / name, topdown=False):
                folder = Path(found)
                for path in (folder / name for name in names):
                    if path not in kept:
                        path.unlink()
                if folder not in mounted and not any(folder.iterdir()):
                    folder.rmdir()


def _link(path: Path, target: str) -> Path:
    """Make a symbolic link, atomically, unless it is there; return its path."""
    if not (path.is_symlink() and str(path.readlink()) == target):
        unfinished = path.with_name(files.unfinished_name(path.name))
        unfinished.unlink(missing_ok=True)
        unfinished.symlink_to(target)
        unfinished.rename(path)
    return path
