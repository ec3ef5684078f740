"""Users of a fake node's GPUs where each belongs to one container: almost all, so this is quick."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from simgpu.controllers.loading import PodLoads
from simgpu.kube.views import Pod
from simgpu.machines import users
from simgpu.machines.fleet import NodeCards
from simgpu.machines.users import PodRef, User
from simgpu.pods import assigning, requests


def users_of(
    there: Sequence[tuple[Pod, assigning.Wish]], placed: NodeCards, held: Mapping[str, Sequence[str]], loads: PodLoads
) -> dict[str, tuple[User, ...]]:
    """Return the users of GPUs that were assigned to pods, by id."""
    memory = {card.device.uuid: card.device.model.memory_mib.usable for card in placed.cards} if there else {}
    found: dict[str, tuple[User, ...]] = {}
    for pod, wish in there:
        load, meta, running = loads.of(pod), pod.metadata, requests.running(pod)
        owners, init = wish.owners(started=running), requests.regular_init(pod)
        for container, gpu in zip(owners, held[wish.uid], strict=True):
            if gpu:
                ref = PodRef(meta.name, meta.namespace, container, meta.uid)
                works = running and container not in init
                if load.plain:  # as almost all are, and there can be very many
                    found[gpu] = (User(ref, load.utilization if works else users.NONE, memory[gpu]),)
                else:
                    does = load.of(container, works=works)
                    found[gpu] = (loads.user(pod, does, ref, memory[gpu], memory[gpu]),)
    return found
