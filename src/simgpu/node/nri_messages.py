"""Messages of NRI (v1alpha1), by which plugins adjust containers that a runtime creates: those that we use."""

from __future__ import annotations

from typing import Annotated

import msgspec

from simgpu.node.protobuf import Message

RUNTIME, PLUGIN = "nri.pkg.api.v1alpha1.Runtime", "nri.pkg.api.v1alpha1.Plugin"
PLUGIN_CONNECTION, RUNTIME_CONNECTION = 1, 2  # calls of the runtime, and calls of the plugin
CREATE_CONTAINER = 1 << 3  # the event's bit in a subscription


class RegisterPluginRequest(Message, frozen=True):
    """A plugin registers; plugins are called in the order of their index, two digits."""

    plugin_name: Annotated[str, 1] = ""
    plugin_index: Annotated[str, 2] = ""


class ConfigureResponse(Message, frozen=True):
    """The events that a plugin subscribes to, one bit each."""

    events: Annotated[int, 2] = 0


class SynchronizeRequest(Message, frozen=True):
    """The containers that exist, in one or more messages; which ones is of no interest here."""

    more: Annotated[bool, 3] = False


class SynchronizeResponse(Message, frozen=True):
    """The answer to each of these messages; `more` as in the request."""

    more: Annotated[bool, 2] = False


class PodSandbox(Message, frozen=True):
    """The pod of a container."""

    name: Annotated[str, 2] = ""
    uid: Annotated[str, 3] = ""
    namespace: Annotated[str, 4] = ""
    labels: Annotated[dict[str, str], 5] = msgspec.field(default_factory=dict)
    annotations: Annotated[dict[str, str], 6] = msgspec.field(default_factory=dict)


class NriMount(Message, frozen=True):
    """A mount of a container."""

    destination: Annotated[str, 1] = ""
    type: Annotated[str, 2] = ""
    source: Annotated[str, 3] = ""
    options: Annotated[tuple[str, ...], 4] = ()


class NriContainer(Message, frozen=True):
    """A container that is being created."""

    name: Annotated[str, 3] = ""
    mounts: Annotated[tuple[NriMount, ...], 9] = ()


class CreateContainerRequest(Message, frozen=True):
    """A container is being created."""

    pod: Annotated[PodSandbox | None, 1] = None
    container: Annotated[NriContainer | None, 2] = None


class KeyValue(Message, frozen=True):
    """A variable of the environment."""

    key: Annotated[str, 1] = ""
    value: Annotated[str, 2] = ""


class ContainerAdjustment(Message, frozen=True):
    """What a container gets besides what its pod says."""

    mounts: Annotated[tuple[NriMount, ...], 3] = ()
    env: Annotated[tuple[KeyValue, ...], 4] = ()


class CreateContainerResponse(Message, frozen=True):
    """The adjustment of a container; None if it is left alone."""

    adjust: Annotated[ContainerAdjustment | None, 1] = None
