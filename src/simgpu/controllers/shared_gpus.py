"""Users of a fake node's GPUs where these are shared: by time-slicing, or by Run:ai's reservations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence

from simgpu.controllers.loading import PodLoads
from simgpu.kube.views import Pod
from simgpu.machines.users import User
from simgpu.pods import assigning, requests, reserving
from simgpu.pods.holding import Holder
from simgpu.topology import sharing

Wishes = Sequence[tuple[Pod, assigning.Wish]]


def free_shares(
    ids: Sequence[str], replicas: int, *, kept: Container[str], unhealthy: Container[str], claimed: Container[str]
) -> list[str]:
    """Return the shares that pods may have: of unhealthy GPUs those that they `kept`, of claimed ones none."""
    return [
        item
        for item in assigning.shares(ids, replicas)
        if (gpu := sharing.device(item)) not in claimed and (gpu not in unhealthy or item in kept)
    ]


def users_of(
    wishes: Wishes,
    held: Mapping[str, Sequence[str]],
    pods: Iterable[Pod],
    *,
    memory: Mapping[str, int],
    replicas: int,
    reservations: str,
    loads: PodLoads,
) -> dict[str, tuple[User, ...]]:
    """Return the users of each GPU by id: reservations first, then the oldest pods, then those that name a reservation.

    `memory` is each GPU's in MiB, `reservations` the namespace of reservation pods.
    """
    holders: dict[str, list[Holder]] = {}
    for pod, wish in wishes:
        owners = wish.owners(started=requests.running(pod))
        pairs = zip(owners, held[wish.uid], strict=True)
        shares = Counter((container, sharing.device(item)) for container, item in pairs if item)
        for (container, gpu), count in shares.items():
            holders.setdefault(gpu, []).append(Holder(pod, container, min(1.0, count / replicas)))
    lent = reserving.lend(pods, {gpu: tuple(items) for gpu, items in holders.items()}, namespace=reservations)
    return {
        gpu: tuple(loads.holder_user(item, memory[gpu], works=_works(item)) for item in items)
        for gpu, items in lent.items()
    }


def _works(holder: Holder) -> bool:
    return requests.running(holder.pod) and holder.container not in requests.regular_init(holder.pod)
