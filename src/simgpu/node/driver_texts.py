"""Texts that NVIDIA's kernel module shows below `/proc/driver`, and minor numbers of MIG's device files. Pure.

Formats and values are those of a machine with an H200 and driver 580.159.04; but no module makes device files here, and
so `ModifyDeviceFiles` is 0: otherwise NVIDIA's container hooks change the text in containers, which have none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from simgpu.topology.devices import Device

MIG_CONFIG, MIG_MONITOR = 1, 2  # minor numbers of the device files to change instances, and to watch them
READABLE, OWNERS_ONLY = 0o444, 0o400  # modes of these files

_LISTED_GPUS, _GPU_INSTANCES, _COMPUTE_INSTANCES = (
    32,
    15,
    8,
)  # whose minor numbers are listed, whether they exist or not
_FIRST = 3  # minor number of an instance
_OPEN_MODULE_SINCE = 7.5  # compute capability
_PARAMS = """\
ResmanDebugLevel: 4294967295
RmLogonRC: 1
ModifyDeviceFiles: 0
DeviceFileUID: 0
DeviceFileGID: 0
DeviceFileMode: 438
InitializeSystemMemoryAllocations: 1
UsePageAttributeTable: 4294967295
EnableMSI: 1
EnablePCIeGen3: 0
MemoryPoolSize: 0
KMallocHeapMaxSize: 0
VMallocHeapMaxSize: 0
IgnoreMMIOCheck: 0
EnableStreamMemOPs: 0
EnableUserNUMAManagement: 1
NvLinkDisable: 0
RmProfilingAdminOnly: 1
PreserveVideoMemoryAllocations: 0
EnableS0ixPowerManagement: 0
S0ixPowerManagementVideoMemoryThreshold: 256
DynamicPowerManagement: 3
DynamicPowerManagementVideoMemoryThreshold: 200
RegisterPCIDriver: 1
EnablePCIERelaxedOrderingMode: 0
EnableResizableBar: 0
EnableGpuFirmware: 18
EnableGpuFirmwareLogs: 2
RmNvlinkBandwidthLinkCount: 0
EnableDbgBreakpoint: 0
OpenRmEnableUnsupportedGpus: 1
DmaRemapPeerMmio: 1
ImexChannelCount: 2048
CreateImexChannel0: 0
GrdmaPciTopoCheckOverride: 0
CoherentGPUMemoryMode: ""
RegistryDwords: ""
RegistryDwordsPerDevice: ""
RmMsg: ""
GpuBlacklist: ""
TemporaryFilePath: ""
ExcludedGpus: ""
"""


def gpu_instance_minor(gpu: int, instance: int) -> int:
    """Return the minor number of the device file of a GPU instance; that of its first compute instance follows."""
    return _FIRST + (gpu * _GPU_INSTANCES + instance) * (1 + _COMPUTE_INSTANCES)


def instance_minors(device: Device) -> Iterator[tuple[str, int]]:
    """Yield each GPU instance that a device has, and each compute instance, as a path, and its minor number."""
    filled = {place.number for place, _ in device.mig_devices()}
    for place in device.placements():
        minor, number = gpu_instance_minor(device.index, place.number), place.number
        yield f"gi{number}", minor
        for compute in [0] if number in filled else [item.number for item in device.compute if item.within == number]:
            yield f"gi{number}/ci{compute}", minor + 1 + compute


def texts(devices: Sequence[Device], version: str, *, machine: str) -> dict[str, str]:
    """Return the texts by path below `/proc/driver`; `machine` is the architecture."""
    found = {
        "nvidia/version": _version(devices, version, machine),
        "nvidia/params": _PARAMS,
        "nvidia/registry": 'Binary: ""\n',
        "nvidia/capabilities/mig/config": _capability(MIG_CONFIG, OWNERS_ONLY),
        "nvidia/capabilities/mig/monitor": _capability(MIG_MONITOR, READABLE),
        "nvidia-caps/mig-minors": "".join(_mig_minors(max(_LISTED_GPUS, len(devices)))),
    }
    for device in devices:
        found[f"nvidia/gpus/{device.pci_short}/information"] = _information(device, version)
        for instance, minor in instance_minors(device):
            found[f"nvidia/capabilities/gpu{device.index}/mig/{instance}/access"] = _capability(minor, READABLE)
    return found


def _version(devices: Sequence[Device], version: str, machine: str) -> str:
    is_open = all(float(item.model.compute_capability or "0") >= _OPEN_MODULE_SINCE for item in devices)
    module = f"Open Kernel Module for {machine}" if is_open else f"{machine} Kernel Module"
    return (
        f"NVRM version: NVIDIA UNIX {module}  {version}  Release Build  (simgpu)  \nGCC version:  gcc version (GCC) \n"
    )


def _information(device: Device, version: str) -> str:
    vbios = device.model.board.vbios.lower() if device.model.board is not None else ""
    return (
        f"Model: \t\t {device.model.product}\n"
        "IRQ:   \t\t 0\n"
        f"GPU UUID: \t {device.uuid}\n"
        f"Video BIOS: \t {vbios or '??.??.??.??.??'}\n"
        "Bus Type: \t PCIe\n"
        "DMA Size: \t 52 bits\n"
        "DMA Mask: \t 0xfffffffffffff\n"
        f"Bus Location: \t {device.pci_short}\n"
        f"Device Minor: \t {device.index}\n"
        f"GPU Firmware: \t {version}\n"
        "GPU Excluded:\t No\n"
    )


def _capability(minor: int, mode: int) -> str:
    return f"DeviceFileMinor: {minor}\nDeviceFileMode: {mode}\nDeviceFileModify: 1\n"


def _mig_minors(gpus: int) -> Iterator[str]:
    yield f"config {MIG_CONFIG}\nmonitor {MIG_MONITOR}\n"
    for gpu in range(gpus):
        for instance in range(_GPU_INSTANCES):
            minor = gpu_instance_minor(gpu, instance)
            yield f"gpu{gpu}/gi{instance}/access {minor}\n"
            for compute in range(_COMPUTE_INSTANCES):
                yield f"gpu{gpu}/gi{instance}/ci{compute}/access {minor + 1 + compute}\n"
