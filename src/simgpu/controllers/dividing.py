"""Changes of a node's MIG layout, as NVIDIA's MIG manager makes them, for fake and real nodes.

The state label goes from `pending` over `rebooting`, where a card's mode changes only with a restart, to `success` or
`failed`. A card that pods use is not changed. What failed is tried again once the choice or the configuration changes.

Level-triggered: each step follows from the node as it is seen. A node that is seen for the first time gets its layout
at once; a controller that starts again resumes from what the node has.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Sequence

import msgspec

from simgpu import errors, vocabulary
from simgpu.controllers.configuring import Configuration, subject_of
from simgpu.kube.views import Node
from simgpu.topology import devices, mig_choice, mig_offers
from simgpu.topology.mig_choice import LayoutChoice
from simgpu.topology.mig_layouts import CardLayout
from simgpu.topology.pools import NodeGpu, NodeGpus, Topology
from simgpu.vocabulary import MIG_FAILED, MIG_PENDING, MIG_REBOOTING, MIG_SUCCESS

_REASON = "MigConfigFailed"
_RESTARTED = "8."  # compute capability of cards whose MIG mode changes only with a restart
_MAX_NAMED = 3  # pods in a message
_MAX_APPLIED = 1024  # layouts of pools that are kept


class AppliedLayout(msgspec.Struct, frozen=True):
    """What a choice makes of a pool with a configuration."""

    choice: LayoutChoice
    pool: NodeGpus
    topology: Topology
    result: NodeGpus


class Division(msgspec.Struct):
    """The choice of a node's layout that is being dealt with, the state of the change, and the configuration then."""

    choice: LayoutChoice
    state: str = ""
    topology: Topology | None = None
    applied: AppliedLayout | None = None


class Divisions:
    """The MIG layouts of nodes. Nodes without any cost nothing."""

    def __init__(self, configuration: Configuration) -> None:
        self._configuration = configuration
        self._known: dict[str, Division] = {}
        self._applied: dict[tuple[LayoutChoice, int], AppliedLayout] = {}  # for all nodes of a pool

    def of(
        self,
        node: Node,
        pool: NodeGpus,
        topology: Topology,
        *,
        current: Callable[[], NodeGpus | None],
        users: Callable[[int], Sequence[str]],
    ) -> NodeGpus:
        """Return what a node of a pool should have now.

        `current` is what it has, None if nothing; `users` are the names of the pods on a GPU, by index.
        """
        choice = mig_choice.choose(node.metadata.labels, node.metadata.annotations, pool)
        division = self._known.get(node.metadata.name)
        if division is None:
            if not choice and vocabulary.MIG_CONFIG_STATE not in node.metadata.labels:
                return pool
            division = self._known[node.metadata.name] = Division(choice)
        if division.choice != choice or (division.state == MIG_FAILED and division.topology is not topology):
            division.choice, division.state = choice, ""
        division.topology = topology
        had = mig_choice.layouts(current(), pool)
        kept = msgspec.structs.replace(pool, gpus=mig_choice.laid_out(pool.gpus, had))
        try:
            wanted = self._wanted(division, pool, topology)
            changing = _changing(wanted, had)
            if changing and not self._begun(node, division):
                return kept
            _check_unused(changing, users, field=choice.key or "mig.config")
        except errors.InputError as error:
            if self._begun(node, division):
                division.state = MIG_FAILED
                self._configuration.report(subject_of(node), _REASON, f"{error}; the node keeps what it had")
            return kept
        if division.state == MIG_PENDING and any(_restarts(wanted.gpus[index], had[index]) for index in changing):
            division.state = MIG_REBOOTING
            return kept
        division.state = MIG_SUCCESS if choice else ""
        self._configuration.resolved(node, _REASON)
        return wanted

    def _begun(self, node: Node, division: Division) -> bool:
        """Return whether a change may be made: it is pending, and everybody can see that. What failed stays so."""
        if division.state == MIG_FAILED:
            return False
        if division.state not in (MIG_PENDING, MIG_REBOOTING):
            division.state = MIG_PENDING
            return False
        return _seen(node, division)

    def _wanted(self, division: Division, pool: NodeGpus, topology: Topology) -> NodeGpus:
        choice, mine = division.choice, division.applied
        if not choice.key:
            return pool
        if mine is not None and mine.topology is topology and mine.choice == choice and mine.pool == pool:
            return mine.result  # the pool of a real node is another object each time
        key = choice, id(pool)
        known = self._applied.get(key)
        if known is None or known.pool is not pool or known.topology is not topology:
            if known is not None or len(self._applied) >= _MAX_APPLIED:
                self._applied.clear()  # of an earlier topology, or of earlier choices
            known = AppliedLayout(choice, pool, topology, mig_choice.apply(choice, pool, topology))
            self._applied[key] = known
        division.applied = known
        return known.result

    def concerns(self, name: str) -> bool:
        """Return whether a node has a layout of its own."""
        return name in self._known

    def unfinished(self, node: Node) -> bool:
        """Return whether a change goes on at the next look: its state is seen already, so no write will bring one."""
        division = self._known.get(node.metadata.name)
        return division is not None and division.state in (MIG_PENDING, MIG_REBOOTING) and _seen(node, division)

    def labels(self, name: str) -> dict[str, str]:
        """Return the label with the state of a node's layout, if one was chosen."""
        division = self._known.get(name)
        return {vocabulary.MIG_CONFIG_STATE: division.state} if division is not None and division.state else {}

    def annotations(self, node: Node, spec: NodeGpus, ids: Sequence[str]) -> dict[str, dict[str, str | None]]:
        """Return the part of a patch of metadata that sets or removes the annotation of instances, by GPU ids.

        It is there where Run:ai's annotation has chosen the layout.
        """
        division = self._known.get(node.metadata.name)
        known = vocabulary.RUNAI_MIG_MAPPING in node.metadata.annotations
        if division is None or division.choice.key != vocabulary.RUNAI_MIG_CONFIG:
            return {"annotations": {vocabulary.RUNAI_MIG_MAPPING: None}} if known else {}
        if division.state != MIG_SUCCESS:
            return {}
        found = {
            str(index): [
                {"position": start, "device_uuid": devices.part_id(gpu_id, number), "gpu_instance_id": profile.id}
                for start, number, profile in mig_offers.numbered(gpu.layout, gpu.model)
            ]
            for index, (gpu_id, gpu) in enumerate(zip(ids, spec.gpus, strict=True))
            if gpu.layout.enabled
        }
        return {"annotations": {vocabulary.RUNAI_MIG_MAPPING: base64.b64encode(msgspec.json.encode(found)).decode()}}

    def forget(self, name: str) -> None:
        """Forget a node that is gone."""
        self._known.pop(name, None)


def _seen(node: Node, division: Division) -> bool:
    return node.metadata.labels.get(vocabulary.MIG_CONFIG_STATE) == division.state


def _changing(wanted: NodeGpus, had: Sequence[CardLayout | None]) -> list[int]:
    """Return the GPUs, by index, that are there and are divided in another way."""
    pairs = enumerate(zip(wanted.gpus, had, strict=True))
    return [index for index, (gpu, layout) in pairs if layout is not None and layout != gpu.layout]


def _check_unused(gpus: Iterable[int], users: Callable[[int], Sequence[str]], *, field: str) -> None:
    for index in gpus:
        if pods := users(index):
            more = f" and {len(pods) - _MAX_NAMED} more" if len(pods) > _MAX_NAMED else ""
            raise errors.InputError(field, f"GPU {index} is in use by {', '.join(pods[:_MAX_NAMED])}{more}")


def _restarts(gpu: NodeGpu, before: CardLayout | None) -> bool:
    """Return whether a GPU's MIG mode changes, and only with a restart of the node."""
    switched = before is not None and before.enabled != gpu.layout.enabled
    return switched and (gpu.model.compute_capability or "").startswith(_RESTARTED)
