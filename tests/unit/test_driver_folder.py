"""The driver folder: what programs of NVIDIA find there, and what they do not."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import stat
from pathlib import Path
from typing import Any

import msgspec
import pytest

from simgpu import errors
from simgpu.catalog import models
from simgpu.node import device_nodes, driver_texts, pci_files
from simgpu.node.driver import DriverFolder
from simgpu.topology import devices
from simgpu.topology.devices import Device

FREE = "Character devices:\n  1 mem\n\nBlock devices:\n195 other\n"
TAKEN = "Character devices:\n  1 mem\n195 nvidia\n\nBlock devices:\n  7 loop\n"
LIBRARIES = f"usr/lib/{platform.machine()}-linux-gnu"


def cards(count: int = 2, mig: tuple[str, ...] = (), **changed: Any) -> list[Device]:
    config = devices.BoxConfig((devices.GpuEntry("h200", count=count, mig=mig),))
    made = devices.build(config, models.load(), node="n")
    replace = msgspec.structs.replace
    return [replace(item, model=replace(item.model, **changed)) for item in made]


def folder(tmp_path: Path, listed: str = FREE) -> DriverFolder:
    for name, text in (("library", "so"), ("tool", "elf"), ("devices", listed)):
        (tmp_path / name).write_text(text)
    made = DriverFolder(
        tmp_path / "driver", tmp_path / "library", tmp_path / "tool", listed=tmp_path / "devices"
    )  # fmt: skip
    made.claim()
    return made


def there(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_symlink() or not path.is_dir()}


def can_make_device_files(folder: Path) -> bool:
    """Whether we may: root may not in a namespace of users, or without the capability."""
    try:
        os.mknod(folder / "try", stat.S_IFCHR | 0o600, os.makedev(device_nodes.MAJOR, 0))
    except PermissionError:
        return False
    (folder / "try").unlink()
    return True


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[int, int]]:
    """Device files that were made: as plain files, so that everybody may."""
    made: dict[str, tuple[int, int]] = {}

    def mknod(path: Path, mode: int, device: int) -> None:
        assert stat.S_ISCHR(mode)
        made[Path(path).name] = (os.major(device), os.minor(device))
        Path(path).touch()

    monkeypatch.setattr(os, "mknod", mknod)
    return made


def test_it_has_the_names_that_programs_of_nvidia_look_for(tmp_path: Path, nodes: dict[str, tuple[int, int]]) -> None:
    found, listed = folder(tmp_path), cards()
    found.show(listed)
    root = tmp_path / "driver"
    for name in ("libnvidia-ml.so", "libnvidia-ml.so.1", "libnvidia-ml.so.580.159.04"):
        assert (root / LIBRARIES / name).read_text() == "so"
    assert os.access(root / "usr/bin/nvidia-smi", os.X_OK)
    assert {name: nodes[name] for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-modeset")} == {
        "nvidia0": (195, 0), "nvidia1": (195, 1), "nvidiactl": (195, 255), "nvidia-modeset": (195, 254),
    }  # fmt: skip
    assert len({*nodes.values()}) == len(nodes)
    assert found.pages == root / "var/lib/simgpu/gpus"


@pytest.mark.usefixtures("nodes")
def test_links_to_pages_stay_within_the_folder_wherever_it_is_mounted(tmp_path: Path) -> None:
    found, listed = folder(tmp_path), cards()
    found.show(listed)
    for card in listed:
        (found.pages / card.uuid).mkdir(parents=True)
        (found.pages / card.uuid / "page").write_text(card.uuid)
    (tmp_path / "driver").rename(tmp_path / "elsewhere")
    firmware = tmp_path / "elsewhere/lib/firmware/nvidia/580.159.04"
    assert {path.name: path.read_text() for path in firmware.glob("gsp*.bin")} == {
        f"gsp_simgpu-{card.uuid}.bin": card.uuid for card in listed
    }


@pytest.mark.usefixtures("nodes")
def test_another_version_and_fewer_gpus_leave_nothing_of_the_first_behind(tmp_path: Path) -> None:
    found = folder(tmp_path)
    found.show(cards(4, mig=("1g.18gb",)))
    found.show(cards(1, driver="570.86.15"))
    left = there(tmp_path / "driver")
    assert not [name for name in left if "580.159" in name or "nvidia3" in name or "mig/gi" in name]
    assert f"{LIBRARIES}/libnvidia-ml.so.570.86.15" in left
    found.show([])
    assert there(tmp_path / "driver") == {".simgpu"}


@pytest.mark.usefixtures("nodes")
def test_folders_that_root_mounts_elsewhere_stay_while_there_are_no_gpus(tmp_path: Path) -> None:
    found, root = folder(tmp_path), tmp_path / "driver"
    found.show(cards(1))
    names = ("proc/driver", "sys/bus/pci/devices", "dev", "dev/nvidia-caps")
    opened = [os.open(root / name, os.O_PATH | os.O_DIRECTORY) for name in names]  # as a mount has them
    found.show([])
    assert [len(list(os.scandir(f"/proc/self/fd/{folder}"))) for folder in opened] == [0, 0, 1, 0]
    found.show(cards(2))
    [texts, addresses, nodes, caps] = [{item.name for item in os.scandir(f"/proc/self/fd/{it}")} for it in opened]
    for descriptor in opened:
        os.close(descriptor)
    assert texts == {"nvidia", "nvidia-caps"}
    assert len(addresses) == 2
    assert {"nvidia0", "nvidia1"} <= nodes
    assert caps == {"nvidia-cap1", "nvidia-cap2"}


class Killed(BaseException):
    """What ends an agent at any moment."""


def killed_after(count: int, patch: pytest.MonkeyPatch) -> None:
    """End the agent before a change of the file system, after so many others."""
    left = iter(range(count))
    for place, name in ((Path, "unlink"), (Path, "rmdir"), (Path, "rename"), (Path, "mkdir"), (shutil, "rmtree")):
        real = getattr(place, name)

        def change(*args: Any, _real: Any = real, **more: Any) -> Any:
            if next(left, None) is None:
                raise Killed
            return _real(*args, **more)

        patch.setattr(place, name, change)


@pytest.mark.usefixtures("nodes")
@pytest.mark.parametrize("count", range(0, 400, 7))
def test_an_agent_that_is_killed_at_any_moment_leaves_nothing_that_the_next_does_not_remove(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    found, root = folder(tmp_path), tmp_path / "driver"
    (root / "usr").mkdir()
    (root / "usr/other").touch()
    with monkeypatch.context() as patch, contextlib.suppress(Killed):
        killed_after(count, patch)
        found.show(cards(2, mig=("1g.18gb",)))
        (found.pages / "GPU-x").mkdir(parents=True)
        found.show(cards(1, driver="570.86.15"))
        found.remove()
    folder_again = DriverFolder(root, tmp_path / "library", tmp_path / "tool", listed=tmp_path / "devices")
    if folder_again.is_ours:
        folder_again.claim()
        assert folder_again.release(())
    assert there(root) == {"usr/other"}
    assert {path.name for path in root.rglob("*")} == {"usr", "other"}
    assert folder_again.release(())


@pytest.mark.usefixtures("nodes")
def test_a_driver_that_was_switched_off_stays_until_the_pods_end_that_had_gpus_then(tmp_path: Path) -> None:
    found, root = folder(tmp_path), tmp_path / "driver"
    found.show(cards())
    assert not found.release({"a", "b"})
    found.show(cards(1))
    assert not found.release({"b", "new"})
    assert (root / "usr/bin/nvidia-smi").exists()
    found.claim()  # on again, and off
    assert not found.release({"new"})
    assert found.release({"a"})  # of which nothing was known when it was switched off
    assert not list(root.iterdir())


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b'{"files": 1}'])
def test_a_mark_that_cannot_be_read_still_says_that_the_folder_is_ours(tmp_path: Path, content: bytes) -> None:
    found, root = folder(tmp_path), tmp_path / "driver"
    (root / ".simgpu").write_bytes(content)
    found.claim()
    assert found.release(())
    assert not list(root.iterdir())


@pytest.mark.parametrize("name", ["../outside", "usr/../../outside", "", ".", "a\0b", "{root}/outside"])
def test_a_mark_that_names_files_elsewhere_removes_none_of_them(tmp_path: Path, name: str) -> None:
    found, root = folder(tmp_path), tmp_path / "driver"
    (tmp_path / "outside").touch()
    named = name.replace("{root}", str(tmp_path))
    (root / ".simgpu").write_bytes(msgspec.json.encode({"files": [named]}))
    assert found.release(())
    assert (tmp_path / "outside").exists()
    assert not list(root.iterdir())


def test_a_mark_that_was_being_written_is_not_taken_for_another_driver(tmp_path: Path) -> None:
    (tmp_path / "driver").mkdir()
    (tmp_path / "driver/..simgpu.unfinished").touch()
    folder(tmp_path).remove()
    assert not list((tmp_path / "driver").iterdir())


@pytest.mark.usefixtures("nodes")
def test_nothing_is_written_again_while_the_gpus_stay_the_same(tmp_path: Path) -> None:
    found, listed = folder(tmp_path), cards()
    found.show(listed)
    (tmp_path / "driver/usr/bin/nvidia-smi").unlink()
    found.show(listed)
    assert not (tmp_path / "driver/usr/bin/nvidia-smi").exists()
    found.show(list(listed))
    assert (tmp_path / "driver/usr/bin/nvidia-smi").exists()


@pytest.mark.parametrize("version", ["../../etc", "580", "580.1\n", "1.2.3.4.5"])
def test_a_version_that_is_none_is_refused_before_anything_is_written(tmp_path: Path, version: str) -> None:
    found = folder(tmp_path)
    with pytest.raises(errors.InputError, match="driver_version"):
        found.show(cards(driver=version))
    assert there(tmp_path / "driver") == {".simgpu"}


def test_the_folder_of_another_driver_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "driver/usr").mkdir(parents=True)
    with pytest.raises(errors.InputError, match="in use by another driver"):
        folder(tmp_path)
    DriverFolder(tmp_path / "driver", tmp_path, tmp_path).remove()
    assert (tmp_path / "driver/usr").is_dir()


def test_device_files_never_lead_to_a_real_gpu(
    tmp_path: Path, nodes: dict[str, tuple[int, int]], caplog: pytest.LogCaptureFixture
) -> None:
    folder(tmp_path, TAKEN).show(cards())
    assert not nodes
    assert not (tmp_path / "driver/dev").exists()
    assert "the machine has a driver of NVIDIA" in caplog.text


def test_without_the_privilege_everything_but_device_files_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def mknod(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "mknod", mknod)
    folder(tmp_path).show(cards())
    assert (tmp_path / "driver/usr/bin/nvidia-smi").exists()
    assert not (tmp_path / "driver/dev").exists()
    assert "CAP_MKNOD is missing" in caplog.text


def test_device_files_are_made_as_on_hardware(tmp_path: Path) -> None:
    if not can_make_device_files(tmp_path):
        pytest.skip("making device files needs CAP_MKNOD")
    folder(tmp_path).show(cards(1, mig=("1g.18gb",)))
    for name, mode in (("nvidia0", 0o666), ("nvidia-caps/nvidia-cap1", 0o400), ("nvidia-caps/nvidia-cap2", 0o444)):
        found = (tmp_path / "driver/dev" / name).stat()
        assert stat.S_ISCHR(found.st_mode)
        assert (os.major(found.st_rdev), stat.S_IMODE(found.st_mode)) == (195, mode)


def test_minor_numbers_of_instances_are_those_of_the_real_list() -> None:
    lines = driver_texts.texts(cards(), "580.159.04", machine="x86_64")["nvidia-caps/mig-minors"].splitlines()
    assert len(lines) == 4322
    assert lines[:4] == ["config 1", "monitor 2", "gpu0/gi0/access 3", "gpu0/gi0/ci0/access 4"]
    assert lines[11] == "gpu0/gi1/access 12"
    assert lines[-1] == "gpu31/gi14/ci7/access 4322"


def test_a_mig_device_has_two_device_files_and_their_texts() -> None:
    listed = cards(2, mig=("3g.71gb", "1g.18gb"))
    texts = driver_texts.texts(listed, "580.159.04", machine="x86_64")
    named = {node.path for node in device_nodes.nodes(listed)}
    for card in listed:
        for place, _ in card.mig_devices():
            for part in ("", "ci0/"):
                text = texts[f"nvidia/capabilities/gpu{card.index}/mig/gi{place.number}/{part}access"]
                minor = re.match(r"DeviceFileMinor: (\d+)\nDeviceFileMode: 292\n", text)
                assert minor is not None
                assert f"nvidia-caps/nvidia-cap{minor[1]}" in named
                assert f"gpu{card.index}/gi{place.number}/{part}access {minor[1]}\n" in texts["nvidia-caps/mig-minors"]


def test_each_compute_instance_has_a_device_file_and_its_text_and_a_gpu_instance_without_any_has_its_own() -> None:
    [card] = cards(1, mig=("3g.71gb", "1g.18gb", "1g.18gb"))
    shared, full, bare = (place.number for place in card.placements())
    compute = tuple(devices.ComputeInstance(shared, number, 0, start) for number, start in ((0, 0), (2, 2)))
    card = msgspec.structs.replace(card, bare=(shared, bare), compute=compute)
    parts = {
        f"gi{shared}": 0, f"gi{shared}/ci0": 1, f"gi{shared}/ci2": 3,
        f"gi{full}": 0, f"gi{full}/ci0": 1, f"gi{bare}": 0,
    }  # fmt: skip
    minors = {
        part: driver_texts.gpu_instance_minor(0, int(part.partition("/")[0][2:])) + at for part, at in parts.items()
    }
    texts = driver_texts.texts([card], "580.159.04", machine="x86_64")
    found = {name: text for name, text in texts.items() if name.startswith("nvidia/capabilities/gpu")}
    assert {name.split("mig/")[1]: text.split()[1] for name, text in found.items()} == {
        f"{part}/access": str(minor) for part, minor in minors.items()
    }
    named = {node.path for node in device_nodes.nodes([card]) if node.path.startswith("nvidia-caps")}
    assert named == {f"nvidia-caps/nvidia-cap{minor}" for minor in (1, 2, *minors.values())}


def test_texts_are_those_of_the_kernel_module() -> None:
    [card] = cards(1)
    texts = driver_texts.texts([card], "580.159.04", machine="x86_64")
    assert texts["nvidia/version"].startswith("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  ")
    assert texts[f"nvidia/gpus/{card.pci_short}/information"].splitlines() == [
        "Model: \t\t NVIDIA H200", "IRQ:   \t\t 0", f"GPU UUID: \t {card.uuid}", "Video BIOS: \t 96.00.a5.00.1a",
        "Bus Type: \t PCIe", "DMA Size: \t 52 bits", "DMA Mask: \t 0xfffffffffffff",
        f"Bus Location: \t {card.pci_short}", "Device Minor: \t 0", "GPU Firmware: \t 580.159.04", "GPU Excluded:\t No",
    ]  # fmt: skip


def test_pci_files_are_those_of_the_kernel() -> None:
    [card] = cards(1)
    found = pci_files.files([card])
    texts = {name.rpartition("/")[2]: found[name].decode() for name in found if not name.endswith("config")}
    assert (texts["vendor"], texts["device"], texts["class"]) == ("0x10de\n", "0x2335\n", "0x030200\n")
    config = found[f"{card.pci_short}/config"]
    assert len(config) == 256
    assert config[:4] == bytes.fromhex("de103523")
    assert config[9:12] == bytes.fromhex("000203")


@pytest.mark.parametrize("name", ["usr", "usr/bin/tool/below", "x" * 300, "/".join(["xy"] * 2000), ".simgpu"])
def test_a_mark_that_names_what_no_agent_made_keeps_no_agent_from_showing_and_removing_the_folder(
    tmp_path: Path, name: str
) -> None:
    found, root = folder(tmp_path), tmp_path / "driver"
    (root / "usr/bin").mkdir(parents=True)
    (root / "usr/bin/tool").touch()
    (root / ".simgpu").write_bytes(msgspec.json.encode({"files": [name]}))
    found.show([])
    assert found.is_ours
    found.remove()
    assert there(root) == {"usr/bin/tool"}
