"""What the kernel shows of a GPU below `/sys/bus/pci/devices`, as far as programs of NVIDIA read it. Pure."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from simgpu.topology.devices import Device

_CONFIG_BYTES, _CONFIG_HEAD = 256, "<HHHHBBH"
_ENABLED = 0x0406  # memory, bus master, no legacy interrupts
_REGIONS = 13


def files(devices: Sequence[Device]) -> dict[str, bytes]:
    """Return the files by path below `/sys/bus/pci/devices`."""
    found: dict[str, bytes] = {}
    for device in devices:
        code, kind = int(device.model.pci.device, 16), int(device.model.pci.class_code, 16)
        vendor, product = code & 0xFFFF, code >> 16
        subsystem = int(device.model.pci.subsystem or "0", 16)
        texts = {
            "vendor": f"0x{vendor:04x}\n",
            "device": f"0x{product:04x}\n",
            "subsystem_vendor": f"0x{subsystem & 0xFFFF:04x}\n",
            "subsystem_device": f"0x{subsystem >> 16:04x}\n",
            "class": f"0x{kind:04x}00\n",
            "numa_node": f"{device.numa}\n",
            "resource": f"{' '.join(['0x' + '0' * 16] * 3)}\n" * _REGIONS,
        }
        head = struct.pack(_CONFIG_HEAD, vendor, product, _ENABLED, 0, 0xA1, 0, kind)
        found |= {f"{device.pci_short}/{name}": text.encode() for name, text in texts.items()}
        found[f"{device.pci_short}/config"] = head.ljust(_CONFIG_BYTES, b"\0")
    return found
