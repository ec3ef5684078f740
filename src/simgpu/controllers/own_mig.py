"""MIG on a real node: the layout that its GPUs have, what its instances are for the kubelet, and changes by hand."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import msgspec

from simgpu import errors
from simgpu.catalog import placing
from simgpu.controllers.dividing import Divisions
from simgpu.dra.node_devices import MigPart
from simgpu.kube.views import Node
from simgpu.machines.box import Box
from simgpu.page import showing
from simgpu.pods.holding import HeldInstance
from simgpu.topology import mig_by_hand, mig_choice, mig_layouts, mig_offers
from simgpu.topology.devices import Device, part_id
from simgpu.topology.mig_by_hand import HandMade
from simgpu.topology.mig_choice import LayoutChoice
from simgpu.topology.mig_layouts import CardLayout
from simgpu.topology.pools import NodeGpus, Topology
from simgpu.vocabulary import GPU_RESOURCE, MIG_CONFIG_STATE, MIG_FAILED, MIG_PENDING, MIG_REBOOTING, MIG_SINGLE

_UNCHANGED = (MIG_PENDING, MIG_REBOOTING, MIG_FAILED)  # states in which a node has what it had before


def instances(devices: Sequence[Device], strategy: str) -> dict[str, HeldInstance]:
    """Return the MIG devices of a node, by id."""
    return {
        part_id(device.uuid, place.number): HeldInstance(
            device.uuid, place.number,
            min(placing.memory_mib(profile, device.model), device.model.memory_mib.usable),
            GPU_RESOURCE if strategy == MIG_SINGLE else mig_layouts.resource_name(profile.name),
        )
        for device in devices
        for place, profile in device.mig_devices()
    }  # fmt: skip


def gpus_of(ids: Collection[str], known: Mapping[str, HeldInstance]) -> set[str]:
    """Return the GPUs of devices, which may be MIG instances, by id."""
    return {known[name].gpu if name in known else name for name in ids}


class OwnLayouts:
    """The MIG layouts of the node's GPUs: as chosen by label, annotation or pool, or else as they were set by hand.

    What was set by hand stays until another choice takes effect. `hand` is what the last agent knew of it.
    """

    def __init__(self, divisions: Divisions, hand: HandMade | None) -> None:
        self.hand = hand
        self._divisions = divisions
        self._choice = hand.choice if hand is not None else None  # not known before the cluster is read

    def settle(
        self,
        node: Node,
        pool: NodeGpus,
        topology: Topology,
        *,
        current: NodeGpus,
        users: Callable[[int], Sequence[str]],
    ) -> NodeGpus:
        """Return what the node should have now; `current` is what it has, `users` are the pods on a GPU by index."""
        self._choice = choice = mig_choice.choose(node.metadata.labels, node.metadata.annotations, pool)
        hand = self.hand
        if hand is None or hand.choice != choice:
            found = self._divisions.of(node, pool, topology, current=lambda: current, users=users)
            if self._divisions.labels(node.metadata.name).get(MIG_CONFIG_STATE) not in _UNCHANGED:
                self.hand = None
            return found
        seen = _as_chosen(hand.cards, _chosen(choice, pool, topology, current), current)
        return hand.over(self._divisions.of(node, pool, topology, current=lambda: seen, users=users))

    def change(
        self,
        box: Box,
        index: int,
        setting: str,
        values: Sequence[int],
        *,
        own: CardLayout,
        claimed: Sequence[MigPart],
        held: Collection[int | None],
    ) -> HandMade:
        """Return what is set by hand after a change of a GPU whose `own` layout is this; raises `MigRefused`.

        What claims and pods have stays: `held` are the numbers of the instances of pods, None for the whole GPU.
        """
        if self._choice is None:
            raise mig_by_hand.MigRefused(mig_by_hand.NOT_READY, "the node's layout has not been read yet")
        before = box.devices[index]
        changed = showing.divided(box, index, setting, values)
        kept = {place.number for place, _ in changed.mig_devices()}
        taken = {part.number for part in claimed} | {number for number in held if number is not None}
        if not taken <= kept or (held and changed.mig_mode != before.mig_mode):
            raise mig_by_hand.MigRefused(mig_by_hand.IN_USE, "pods or claims hold the GPU or instances of it")
        static = {number for _, number, _ in mig_offers.numbered(own, before.model)}
        left = _without(changed, {part.number for part in claimed} - static)
        return (self.hand or HandMade(self._choice)).with_card(left)


def _as_chosen(cards: Collection[int], chosen: NodeGpus, current: NodeGpus) -> NodeGpus:
    """Return what a node has, but for these cards, which are as chosen: they are not to be changed."""
    gpus = tuple(
        chosen.gpus[index] if index in cards and index < len(chosen.gpus) else gpu
        for index, gpu in enumerate(current.gpus)
    )
    return msgspec.structs.replace(current, gpus=gpus)


def _chosen(choice: LayoutChoice, pool: NodeGpus, topology: Topology, otherwise: NodeGpus) -> NodeGpus:
    try:
        return mig_choice.apply(choice, pool, topology)
    except errors.InputError:
        return otherwise


def _without(device: Device, numbers: Collection[int]) -> Device:
    """Return a GPU without some of its instances."""
    places = device.placements()
    kept = [at for at, place in enumerate(places) if place.number not in numbers]
    return msgspec.structs.replace(
        device, instances=tuple(device.instances[at] for at in kept), starts=tuple(places[at].start for at in kept)
    )
