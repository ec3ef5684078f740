"""The driver folder: an installation of NVIDIA's driver, as the GPU Operator's driver container leaves it on a node.

It has the library with its versioned names, `nvidia-smi`, the GPUs' pages where both look for them, device files where
they can be made, and what the kernel would show below `/proc/driver` and of the GPUs below `/sys`, for root to mount
there. Pages are there as firmware files too: NVIDIA's container toolkit mounts those into every container with GPUs,
where the library finds them, and the device files that go with them.
"""

from __future__ import annotations

import contextlib
import logging
import platform
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec

from simgpu import errors, vocabulary
from simgpu.node import device_nodes, driver_mark, driver_texts, files, pci_files
from simgpu.page import writer
from simgpu.topology.devices import Device

_PAGES = Path(vocabulary.PAGES_DIR).relative_to("/")
# Folders that others may have mounted: one that is made anew is not the one that they see.
_MOUNTED = ("dev/nvidia-caps", "dev", "proc/driver", "sys/bus/pci/devices")
_VERSION = re.compile(r"[0-9]{1,6}(\.[0-9]{1,6}){1,3}")
_DEVICES = Path("/proc/devices")

_log = logging.getLogger(__name__)

Make = Callable[[Path], object]  # makes a file, unless it is there


class DriverFolder:
    """Keeps a driver folder in line with a node's GPUs, and removes it when it is not wanted any more."""

    def __init__(self, root: Path, library: Path, tool: Path, *, listed: Path = _DEVICES) -> None:
        self._root = root
        self._library = library
        self._tool = tool
        self._listed = listed
        self._shown: Sequence[Device] | None = None
        self._without_nodes = ""  # why it has no device files
        self._reported_nodes = ""

    @property
    def pages(self) -> Path:
        """The folder of the GPUs' pages."""
        return self._root / _PAGES

    @property
    def is_ours(self) -> bool:
        """Whether an agent brought it: this one, or one before."""
        return driver_mark.read(self._root) is not None

    def claim(self) -> None:
        """Mark the folder as ours, and wanted; `InputError` if another driver is in it."""
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            mark = driver_mark.read(self._root)
            if mark is None and (found := driver_mark.others(self._root)):
                has = f"has {errors.shown(found[0])}"
                raise errors.InputError(
                    "--driver-dir", f"{self._root} is in use by another driver: it {has}; name another folder"
                )
            driver_mark.write(self._root, driver_mark.Mark(() if mark is None else mark.files))
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
            self._bring(self._files(devices, version) if devices else {}, self._nodes(devices))
        except OSError as error:
            raise errors.InputError("--driver-dir", errors.explain(error)) from None
        self._shown = devices

    def release(self, pods: Collection[str]) -> bool:
        """Remove the folder once no pod uses it that had GPUs when this was first called; return whether it is removed.

        `pods` are those that have GPUs now, by uid.
        """
        mark = driver_mark.read(self._root)
        if mark is None:
            return True
        using = tuple(sorted(pod for pod in (pods if mark.pods is None else mark.pods) if pod in pods))
        try:
            if using:
                driver_mark.write(self._root, driver_mark.Mark(mark.files, using))
                return False
            self.remove()
        except OSError as error:
            raise errors.InputError("--driver-dir", errors.explain(error)) from None
        return True

    def remove(self) -> None:
        """Remove what agents made in the folder, if one did: the mark last, so that what was interrupted goes on."""
        mark = driver_mark.read(self._root)
        if mark is None:
            return
        own = self._root / _PAGES.parent
        if own.is_dir():
            shutil.rmtree(own)
        self._remove(mark.files)
        self._prune([self._root / name for name in _MOUNTED] + [own.parent])
        driver_mark.remove(self._root)
        if left := driver_mark.others(self._root):
            _log.warning("%s has files of others, which stay: %s", self._root, ", ".join(map(errors.shown, left)))

    def _bring(self, wanted: Mapping[str, Make], nodes: Mapping[str, Make]) -> None:
        """Make files and device files, by path below the folder, and remove those made before."""
        before = self._recorded()
        self._record({*before, *wanted, *nodes})
        for name, make in wanted.items():
            make(self._place(name))
        made = {*wanted, *self._make_nodes(nodes)}
        mounted = {self._root / name for name in _MOUNTED if not (self._without_nodes and name.startswith("dev"))}
        self._remove(({*before, *nodes}) - made, kept=mounted)
        self._record(made)

    def _files(self, devices: Sequence[Device], version: str) -> dict[str, Make]:
        """Return what makes the programs, links to pages, and texts."""
        name = vocabulary.LIBRARY.removesuffix(".1")
        folder = f"usr/lib/{platform.machine()}-linux-gnu"
        found: dict[str, Make] = {
            f"{folder}/{name}.{version}": _program(self._library),
            f"{folder}/{vocabulary.LIBRARY}": partial(_link, target=f"{name}.{version}"),
            f"{folder}/{name}": partial(_link, target=vocabulary.LIBRARY),
            f"usr/bin/{vocabulary.SMI}": _program(self._tool),
        }
        firmware = Path("lib", "firmware", "nvidia", version)
        up = Path(*(".." for _ in firmware.parts))  # links lead nowhere else than within the folder, wherever mounted
        for device in devices:
            page = str(up / _PAGES / device.uuid / writer.FILE)
            found[f"{firmware}/{vocabulary.PAGE_FIRMWARE}{device.uuid}.bin"] = partial(_link, target=page)
        texts = driver_texts.texts(devices, version, machine=platform.machine())
        contents = {f"proc/driver/{name}": text.encode() for name, text in texts.items()}
        contents |= {f"sys/bus/pci/devices/{name}": content for name, content in pci_files.files(devices).items()}
        return found | {name: partial(files.put, content=content, mode=0o444) for name, content in contents.items()}

    def _nodes(self, devices: Sequence[Device]) -> dict[str, Make]:
        """Return what makes the device files; nothing where they would lead to real GPUs."""
        if not devices or self._has_no_driver():
            self._report_nodes("")
            return {f"dev/{node.path}": partial(device_nodes.make, node=node) for node in _listed_nodes(devices)}
        self._report_nodes("the machine has a driver of NVIDIA")
        return {}

    def _make_nodes(self, nodes: Mapping[str, Make]) -> set[str]:
        """Make device files, as far as it is allowed, and return their paths."""
        made: set[str] = set()
        for name, make in nodes.items():
            try:
                make(self._place(name))
            except PermissionError:
                self._report_nodes("CAP_MKNOD is missing")
                break
            made.add(name)
        return made

    def _report_nodes(self, problem: str) -> None:
        if problem and problem != self._reported_nodes:
            _log.warning("%s has no device files: %s", self._root, problem)
            self._reported_nodes = problem
        self._without_nodes = problem

    def _has_no_driver(self) -> bool:
        return device_nodes.is_free(self._listed.read_text())

    def _recorded(self) -> set[str]:
        mark = driver_mark.read(self._root)
        return {*mark.files} if mark is not None else set()

    def _record(self, names: Collection[str]) -> None:
        mark = driver_mark.read(self._root) or driver_mark.Mark()
        driver_mark.write(self._root, msgspec.structs.replace(mark, files=tuple(sorted(names))))

    def _place(self, name: str) -> Path:
        """Return the path of a file below the folder; the folders that it is in are made."""
        path = self._root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def _remove(self, names: Iterable[str], *, kept: Collection[Path] = ()) -> None:
        """Remove files, what an interrupted write left of them, and folders that are empty then, but not those kept."""
        paths = [self._root / name for name in names]
        for path in paths:
            for each in (path.with_name(files.unfinished_name(path.name)), path):
                with contextlib.suppress(IsADirectoryError, NotADirectoryError):  # not made by an agent, so it stays
                    each.unlink(missing_ok=True)
        self._prune((path.parent for path in paths), kept=kept)

    def _prune(self, folders: Iterable[Path], *, kept: Collection[Path] = ()) -> None:
        """Remove folders that are empty, and those that they were in."""
        for folder in folders:
            for each in (folder, *folder.parents):
                if each == self._root or each in kept:
                    break
                try:
                    each.rmdir()
                except FileNotFoundError:
                    continue
                except OSError:  # not empty
                    break


def _listed_nodes(devices: Sequence[Device]) -> Iterable[device_nodes.DeviceNode]:
    return device_nodes.nodes(devices) if devices else ()


def _program(source: Path) -> Make:
    return lambda path: files.put(path, source.read_bytes(), 0o755)


def _link(path: Path, target: str) -> None:
    """Make a symbolic link, atomically, unless it is there."""
    if not (path.is_symlink() and str(path.readlink()) == target):
        unfinished = path.with_name(files.unfinished_name(path.name))
        unfinished.unlink(missing_ok=True)
        unfinished.symlink_to(target)
        unfinished.rename(path)
