"""NVIDIA's own programs on the real node, unmodified: they find our GPUs in the driver folder, and cannot tell."""

from __future__ import annotations

import json
import platform
import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures import images
from tests.fixtures.agent import Gpus
from tests.fixtures.machine import Service, wait_for

DRIVER = "/run/nvidia/driver"
LIBRARIES = f"{DRIVER}/usr/lib/{platform.machine()}-linux-gnu"
PLAIN = {"gpus": [{"type": "h200", "count": 2}]}
# Where NVIDIA's programs read what a kernel module would show.
MOUNTS = ("/proc/driver", "/sys/bus/pci/devices")
CDI_FILE = "/run/cdi/nvidia.yaml"
CHECKPOINT = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"
SMALL = "nvidia.com/mig-1g.18gb"


def _is_discovered(label: str) -> bool:
    """Whether feature discovery writes a label at all; it leaves out the strategy where there is no MIG."""
    operators = ("nvidia.com/gpu.present", "nvidia.com/gpu.deploy.", "nvidia.com/mig.config")
    return not label.startswith((*operators, "nvidia.com/mig.strategy", "nvidia.com/gfd.timestamp"))


def _ids(listed: str) -> list[str]:
    return re.findall(r"UUID: (\S+)\)", listed)


class Nvidia:
    """The node as its driver alone leaves it, and NVIDIA's programs there."""

    def __init__(self, gpus: Gpus, programs: Path) -> None:
        self.gpus, self.machine, self._programs = gpus, gpus.node.machine, programs
        self._plugin: Service | None = None

    def path(self, name: str) -> str:
        return str(self._programs / name)

    def plugin(self, strategy: str = "none") -> None:
        """Start the device plugin, or start it again."""
        self.stop_plugin()
        command = [
            self.path("nvidia-device-plugin"), f"--driver-root-ctr-path={DRIVER}", f"--nvidia-driver-root={DRIVER}",
            f"--nvidia-dev-root={DRIVER}", "--device-list-strategy=cdi-cri", f"--mig-strategy={strategy}",
            f"--nvidia-cdi-hook-path={self.path('nvidia-ctk')}",
        ]  # fmt: skip
        self._plugin = Service(self.machine, "nvidia-device-plugin", command, {"LD_LIBRARY_PATH": LIBRARIES})
        self._plugin.start()

    def stop_plugin(self) -> None:
        if self._plugin is not None and self._plugin.running:
            self._plugin.stop(signal.SIGTERM)
        self._plugin = None

    def have(self, count: int, resource: str = "nvidia.com/gpu") -> None:
        try:
            self.gpus.have(count, resource)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self._plugin.tail() if self._plugin else ''}") from None

    def discovered(self, strategy: str = "none") -> dict[str, str]:
        """The labels that GPU feature discovery has for the node."""
        (self.machine.scratch / "machine").write_text("SimGPU\n")
        output = self.machine.scratch / "labels"
        self.machine.run(
            "env", f"LD_LIBRARY_PATH={LIBRARIES}", self.path("gpu-feature-discovery"), "--oneshot",
            f"--output-file={output}", f"--machine-type-file={self.machine.scratch}/machine",
            f"--mig-strategy={strategy}",
        )  # fmt: skip
        return dict(line.split("=", 1) for line in output.read_text().splitlines())

    def ours(self) -> dict[str, str]:
        found = json.loads(self.gpus.node.kubectl("get", "node", self.gpus.node.name, "-o", "json"))
        labels: dict[str, str] = found["metadata"]["labels"]
        return {name: value for name, value in labels.items() if name.startswith("nvidia.com/")}

    def configure(self, pool: dict[str, Any], devices: int) -> None:
        """Give the node other GPUs, and wait until the driver folder has the device files of all of them."""
        self.gpus.configure(pool)
        caps = self.machine.path(f"{DRIVER}/dev/nvidia-caps")
        wait_for(lambda: len(list(caps.glob("*"))) == 2 + 2 * devices, f"{devices} MIG devices", seconds=20)

    def agrees(self, strategy: str) -> None:
        """Wait until both have the same labels, one by one."""

        def both() -> tuple[dict[str, str], dict[str, str]]:
            found = (self.discovered(strategy), self.ours())
            discovered, ours = ({name: text for name, text in labels.items() if text} for labels in found)
            assert discovered.pop("nvidia.com/gfd.timestamp").isdecimal()
            assert ours["nvidia.com/gfd.timestamp"].isdecimal()
            return discovered, {name: text for name, text in ours.items() if name in discovered or _is_discovered(name)}

        def same() -> bool:
            discovered, ours = both()
            return discovered == ours

        try:
            wait_for(same, "the same labels", seconds=15)
        except AssertionError as error:
            discovered, ours = both()
            raise AssertionError(f"{error}: {sorted({*discovered.items()} ^ {*ours.items()})}") from None

    def listed(self, pod: str) -> list[str]:
        """The GPUs and MIG devices that nvidia-smi lists in a pod, by id."""
        return _ids(self.gpus.exec(pod, "nvidia-smi", "-L"))

    def allocated(self, pod: str, resource: str) -> list[str]:
        """The devices that the kubelet gave to a pod, by id, as it keeps them in its file."""
        uid = self.gpus.node.kubectl("get", "pod", pod, "-o", "jsonpath={.metadata.uid}")
        kept = json.loads(self.machine.path(CHECKPOINT).read_text())["Data"]["PodDeviceEntries"]
        mine = [entry for entry in kept if entry["PodUID"] == uid and entry["ResourceName"] == resource]
        return [device for entry in mine for devices in entry["DeviceIDs"].values() for device in devices]

    def contained(self, device: str) -> list[str]:
        """The same in a container that containerd alone starts with a CDI device."""
        name = re.sub(r"\W", "-", device)
        group = f"--cgroup=/{self.machine.name}/{name}"
        return _ids(
            self.gpus.node.ctr("run", "--rm", group, f"--device={device}", images.BUSYBOX, name, "nvidia-smi", "-L")
        )


@pytest.fixture(scope="module")
def driver_node(equipped: Gpus, nvidia_programs: Path) -> Iterator[Nvidia]:
    """The node without our device plugin and DRA driver."""
    gpus, made = equipped, Nvidia(equipped, nvidia_programs)
    gpus.fail("")
    gpus.configure(PLAIN)
    with ExitStack() as undo:
        undo.callback(_start_again, gpus)
        _start_again(gpus, "--components=driver,labels,exporter")
        wait_for(made.machine.path(f"{DRIVER}/sys/bus/pci/devices").exists, "the driver folder")
        for path in MOUNTS:
            made.machine.run("mount", "--bind", f"{DRIVER}{path}", path)
            undo.callback(made.machine.run, "umount", path)
        undo.callback(made.stop_plugin)
        yield made


def _start_again(gpus: Gpus, *options: str) -> None:
    """Start the agent with other options; it may have failed with those it had."""
    if gpus.agent.running:
        gpus.agent.stop(signal.SIGTERM)
    gpus.agent.start(*options)
    gpus.wait_ready()


@pytest.fixture
def nvidia(driver_node: Nvidia) -> Iterator[Nvidia]:
    yield driver_node
    driver_node.stop_plugin()
    driver_node.gpus.node.kubectl("delete", "pods", "--all", "--now")
    driver_node.gpus.fail("")


def test_feature_discovery_finds_the_labels_that_we_write(nvidia: Nvidia) -> None:
    nvidia.configure(PLAIN, 0)
    nvidia.agrees("none")
    assert nvidia.ours()["nvidia.com/gpu.mode"] == "compute"


def test_the_device_plugin_gives_pods_our_gpus_and_marks_those_with_errors(nvidia: Nvidia) -> None:
    gpus = nvidia.gpus
    nvidia.configure(PLAIN, 0)
    nvidia.plugin()
    nvidia.have(2)
    pod = gpus.pod(annotations={"run.ai/simulated-gpu-utilization": "80"})
    gpus.running(pod)
    [gpu] = nvidia.listed(pod)
    assert gpus.holds(pod) == [gpu], "the agent sees whom the kubelet gave it to"
    busy = ("nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits")
    wait_for(lambda: int(gpus.exec(pod, *busy)) > 50, "the pod's load")

    gpus.fail("unhealthy: [1]")  # XID 48
    nvidia.have(1)
    gpus.fail("")
    nvidia.plugin()  # it has no other way to take a GPU for well again
    nvidia.have(2)


@pytest.fixture
def cdi_file(nvidia: Nvidia) -> Iterator[Path]:
    """Where nvidia-ctk writes a CDI file: containerd reads it, and no other test is to have it."""
    path = nvidia.machine.path(CDI_FILE)
    yield path
    path.unlink(missing_ok=True)


def test_a_cdi_file_of_nvidia_ctk_lets_containerd_start_a_container_with_a_gpu(nvidia: Nvidia, cdi_file: Path) -> None:
    nvidia.configure(PLAIN, 0)
    nvidia.machine.run(
        nvidia.path("nvidia-ctk"), "cdi", "generate", f"--driver-root={DRIVER}", f"--output={CDI_FILE}",
        f"--nvidia-cdi-hook-path={nvidia.path('nvidia-ctk')}",
        "--disable-hook=update-ldcache",  # the image has neither a C library nor /etc; in pods the hook runs
    )  # fmt: skip
    assert "gsp_simgpu-GPU-" in cdi_file.read_text()
    names = nvidia.machine.run(nvidia.path("nvidia-ctk"), "cdi", "list").split()
    assert {"nvidia.com/gpu=0", "nvidia.com/gpu=1", "nvidia.com/gpu=all"} <= {*names}
    every, second = (nvidia.contained(device) for device in ("nvidia.com/gpu=all", "nvidia.com/gpu=1"))
    assert len(every) == 2
    assert second == every[1:]


@pytest.mark.parametrize("strategy", ["mixed", "single"])
def test_mig_devices_are_labelled_and_allocated_in_both_strategies(strategy: str, nvidia: Nvidia) -> None:
    layout = {"1g.18gb": 2, "3g.71gb": 1} if strategy == "mixed" else {"1g.18gb": 4}
    resource = SMALL if strategy == "mixed" else "nvidia.com/gpu"
    nvidia.configure({**PLAIN, "mig": {"strategy": strategy, "config": layout}}, 2 * sum(layout.values()))
    nvidia.agrees(strategy)
    nvidia.plugin(strategy)
    nvidia.have(2 * layout["1g.18gb"], resource)
    pod = nvidia.gpus.pod(resource=resource)
    nvidia.gpus.running(pod)
    shown = nvidia.gpus.exec(pod, "nvidia-smi", "-L").splitlines()
    assert [line.split()[:2] for line in shown] == [["GPU", "0:"], ["MIG", "1g.18gb"]]
    assert _ids(shown[1]) == nvidia.allocated(pod, resource)
