"""Messages of the kubelet's plugin registration (v1), its DRA plugin interface (v1, v1beta1) and its health stream.

Both versions of the DRA plugin interface have the same messages, but for the share of a device, which v1beta1 lacks
and its readers skip.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from simgpu.node.protobuf import Message

REGISTRATION = "pluginregistration.Registration"
PLUGIN_TYPE = "DRAPlugin"
# Services by the version under which they are registered. The kubelet takes the first that it knows.
PLUGIN_SERVICES = {
    "v1.DRAPlugin": "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin",
    "v1beta1.DRAPlugin": "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin",
}
HEALTH_SERVICES = {
    "v1.DRAResourceHealth": "v1.DRAResourceHealth",
    "v1alpha1.DRAResourceHealth": "v1alpha1.DRAResourceHealth",
}
UNKNOWN, HEALTHY, UNHEALTHY = 0, 1, 2


class InfoRequest(Message, frozen=True):
    """The kubelet asks for a plugin's information."""


class PluginInfo(Message, frozen=True):
    """A plugin: its type and name, the path of its socket, and the versions of its services."""

    type: Annotated[str, 1] = ""
    name: Annotated[str, 2] = ""
    endpoint: Annotated[str, 3] = ""
    supported_versions: Annotated[tuple[str, ...], 4] = ()


class RegistrationStatus(Message, frozen=True):
    """Whether the kubelet registered a plugin, or why not."""

    plugin_registered: Annotated[bool, 1] = False
    error: Annotated[str, 2] = ""


class RegistrationStatusResponse(Message, frozen=True):
    """The answer to a registration status."""


class ClaimRef(Message, frozen=True):
    """A ResourceClaim; `Claim` in the interface."""

    namespace: Annotated[str, 1] = ""
    uid: Annotated[str, 2] = ""
    name: Annotated[str, 3] = ""


class ClaimsRequest(Message, frozen=True):
    """Claims to prepare or to unprepare."""

    claims: Annotated[tuple[ClaimRef, ...], 1] = ()


class PreparedDevice(Message, frozen=True):
    """A prepared device of a claim: the requests that it serves, and the CDI devices that inject it."""

    request_names: Annotated[tuple[str, ...], 1] = ()
    pool_name: Annotated[str, 2] = ""
    device_name: Annotated[str, 3] = ""
    cdi_device_ids: Annotated[tuple[str, ...], 4] = ()
    share_id: Annotated[str, 5] = ""


class PrepareResult(Message, frozen=True):
    """The devices of one claim, or why it was not prepared."""

    devices: Annotated[tuple[PreparedDevice, ...], 1] = ()
    error: Annotated[str, 2] = ""


class PrepareResponse(Message, frozen=True):
    """A result for each claim, by uid."""

    claims: Annotated[dict[str, PrepareResult], 1] = msgspec.field(default_factory=dict)


class UnprepareResult(Message, frozen=True):
    """Why a claim was not unprepared; empty if it was."""

    error: Annotated[str, 1] = ""


class UnprepareResponse(Message, frozen=True):
    """A result for each claim, by uid."""

    claims: Annotated[dict[str, UnprepareResult], 1] = msgspec.field(default_factory=dict)


class WatchRequest(Message, frozen=True):
    """The kubelet watches the health of devices."""


class DeviceIdentifier(Message, frozen=True):
    """A device by its pool and name."""

    pool_name: Annotated[str, 1] = ""
    device_name: Annotated[str, 2] = ""


class HealthOfDevice(Message, frozen=True):
    """A device's health at a time in seconds since 1970, valid for `timeout` seconds; `DeviceHealth` there."""

    device: Annotated[DeviceIdentifier | None, 1] = None
    health: Annotated[int, 2] = UNKNOWN
    last_updated_time: Annotated[int, 3] = 0
    timeout: Annotated[int, 4] = 0
    message: Annotated[str, 5] = ""


class WatchResponse(Message, frozen=True):
    """The health of all devices."""

    devices: Annotated[tuple[HealthOfDevice, ...], 1] = ()
