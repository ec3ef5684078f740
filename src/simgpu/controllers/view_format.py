"""The format of a node's view, for reading it.

Views are written by `publishing`, but any user with write access to ConfigMaps can change them. So all fields have the
limits of a topology, and anything invalid is a `ValueError`.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from simgpu import errors, vocabulary, yaml_text
from simgpu.machines.health import DeviceFailure
from simgpu.topology import allocating, pools, sharing

_Name = Annotated[str, msgspec.Meta(max_length=vocabulary.MAX_NAME)]
_Id = Annotated[str, msgspec.Meta(pattern=rf"\A(?:{pools.ID.pattern})\Z")]
_Resource = Annotated[str, msgspec.Meta(pattern=rf"\A(?:{pools.RESOURCE.pattern})\Z")]
_Memory = Annotated[int, msgspec.Meta(ge=0, le=vocabulary.MAX_MEMORY_MIB)]
_Percent = Annotated[int, msgspec.Meta(ge=0, le=100)]
_Profile = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-z.+-]{1,40}\Z")]
_MAX_COUNTERS = 64  # of a GPU


class Owner(msgspec.Struct, frozen=True):
    """The container that has a GPU."""

    namespace: _Name
    pod: _Name
    container: _Name


class Span(msgspec.Struct, frozen=True):
    """Utilisation of a GPU, in percent."""

    min: _Percent
    max: _Percent


class PodGpuUsage(msgspec.Struct, frozen=True, rename="camel"):
    """How a pod uses a GPU."""

    utilization: Span
    fb_used: _Memory
    use_knative_utilization: bool


class GpuStatus(msgspec.Struct, frozen=True, rename="camel"):
    """The owner of a GPU, and the usage of each pod, by uid."""

    allocated_by: Owner
    pod_gpu_usage_status: Annotated[dict[_Name, PodGpuUsage], msgspec.Meta(max_length=vocabulary.MAX_DEVICES)]


class InstanceView(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A MIG instance: its profile, the first slice of its memory, and the container that has it."""

    id: _Name
    profile: _Profile
    start: Annotated[int, msgspec.Meta(ge=0, le=7)]
    allocated_by: Owner | None = None


class DividedView(msgspec.Struct, frozen=True):
    """The MIG instances of a GPU in MIG mode."""

    instances: Annotated[tuple[InstanceView, ...], msgspec.Meta(max_length=8)] = ()


class GpuView(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A GPU; its product and memory where the node's GPUs differ, and its MIG instances where it is divided."""

    id: _Id
    status: GpuStatus
    gpu_product: _Name | None = None
    gpu_memory: _Memory | None = None
    mig: DividedView | None = None


class OtherDevices(msgspec.Struct, frozen=True):
    """Devices of another resource."""

    name: _Resource
    count: Annotated[int, msgspec.Meta(ge=0, le=vocabulary.MAX_DEVICES)]


class View(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A node's GPUs and other devices, with their users."""

    gpu_memory: _Memory
    gpu_product: _Name
    gpus: Annotated[tuple[GpuView, ...], msgspec.Meta(max_length=vocabulary.MAX_GPUS)]
    mig_strategy: Literal["none", "single", "mixed"]
    driver_version: _Name = ""
    cuda_version: _Name = ""
    allocation: Literal["extended", "dra", "both"] = "extended"
    dra: allocating.DraOptions = allocating.DraOptions()
    other_devices: Annotated[tuple[OtherDevices, ...], msgspec.Meta(max_length=vocabulary.MAX_RESOURCES)] = ()
    sharing: sharing.Sharing = sharing.Sharing()


class Counters(msgspec.Struct, frozen=True):
    """Counters of a node's GPUs, by id, at a `time` in seconds since 1970, and the address of its exporter.

    `growth` is how fast they grew, 1 at most, and `term` the number of the lead in which they did; `failures` are the
    configured ones that the counters include already. `held` are the GPUs, or shares of them, of each pod by uid, where
    the users of GPUs do not tell.
    """

    time: float = 0.0
    growth: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)] = 1.0
    term: Annotated[int, msgspec.Meta(ge=0)] | None = None
    address: _Name = ""
    gpus: Annotated[
        dict[_Name, Annotated[list[float], msgspec.Meta(max_length=_MAX_COUNTERS)]],
        msgspec.Meta(max_length=vocabulary.MAX_GPUS),
    ] = {}
    held: Annotated[
        dict[_Name, Annotated[tuple[_Name, ...], msgspec.Meta(max_length=vocabulary.MAX_DEVICES)]],
        msgspec.Meta(max_length=vocabulary.MAX_DEVICES),
    ] = {}
    failures: Annotated[dict[_Name, DeviceFailure], msgspec.Meta(max_length=vocabulary.MAX_GPUS)] = {}


def read(text: str) -> View:
    """Return the view in a YAML text."""
    found = msgspec.convert(yaml_text.parse(text), View)
    for item in found.sharing.time_slicing.resources:
        for name in (item.name, item.rename):
            if name and pools.RESOURCE.fullmatch(name) is None:
                raise ValueError(f"sharing: {errors.shown(name)} is not the name of a resource")
    return found


def read_counters(text: str) -> Counters:
    """Return the saved counters in a JSON text."""
    try:
        return msgspec.json.decode(text, type=Counters)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except ValueError as error:
        raise ValueError(errors.clipped(str(error))) from None
