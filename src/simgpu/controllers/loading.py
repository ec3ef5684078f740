"""What pods do on their GPUs, for fake and real nodes: their annotations, with events for those that are invalid."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from simgpu import vocabulary
from simgpu.controllers.configuring import Configuration, subject_of
from simgpu.kube import resources
from simgpu.kube.operations import Target
from simgpu.kube.store import Store
from simgpu.kube.views import Pod
from simgpu.kube.writer import Writer
from simgpu.machines import users
from simgpu.machines.users import PodRef, User
from simgpu.pods import annotated, kinds, loads, requests, reserving
from simgpu.pods.holding import Holder
from simgpu.topology.devices import part_id

_READ = annotated.LOADS | {vocabulary.UTILIZATION_ANNOTATION, vocabulary.POD_GROUP_ANNOTATION}
_PLAIN = loads.plain(users.ALL)
_REASON = "GpuLimitReached"


def nothing_stored(_namespace: str, _name: str) -> None:
    """Return None: no ConfigMap is known."""


class PodLoads:
    """Reads the loads of pods.

    `find` returns the text of a ConfigMap that a pod names, None until it is known; `find_class` the priority class of
    a PodGroup by its namespace and name, for a pod of a node.
    """

    def __init__(self, configuration: Configuration, writer: Writer, find: loads.FindText = nothing_stored) -> None:
        self.find = find
        self.find_class: Callable[[str, str, str], str] = lambda _namespace, _name, _node: ""
        self._configuration = configuration
        self._writer = writer

    def of(self, pod: Pod) -> loads.PodLoad:
        """Return what a pod's containers do; annotations that are invalid are reported and count as absent."""
        meta = pod.metadata
        if (  # as almost all are, and there can be very many
            _READ.isdisjoint(meta.annotations)
            and vocabulary.KIND_LABEL not in meta.labels
            and not meta.name.startswith(vocabulary.IDLE_POD_PREFIX)
        ):
            self._configuration.resolved(pod, "InvalidUtilization")
            return _PLAIN
        return self._read(pod)

    def _read(self, pod: Pod) -> loads.PodLoad:
        special = kinds.has_kind(pod) or kinds.is_idle(pod)
        checked = self._configuration.checked
        if not special and not loads.is_annotated(pod):
            return loads.plain(checked(pod, "InvalidUtilization", requests.utilisation, users.ALL))
        kind = self._class_of(pod) if special else ""
        default = kinds.utilisation(kind)
        span = checked(pod, "InvalidUtilization", lambda pod: requests.utilisation(pod, default), default)
        if kinds.is_idle(pod):
            span = users.NONE
        stated = vocabulary.UTILIZATION_ANNOTATION in pod.metadata.annotations
        full_load = 0.0
        if kinds.is_inference(kind) and not stated and not kinds.is_idle(pod):
            full_load = checked(pod, "InvalidRequestsAtFullLoad", loads.read_full_load, vocabulary.DEFAULT_FULL_LOAD)
        elif not loads.is_annotated(pod):
            return loads.plain(span)
        return loads.PodLoad(
            span,
            special or stated,
            loads.started(pod),
            checked(pod, "InvalidActivityProfile", lambda pod: loads.read_profiles(pod, self.find), {}),
            checked(pod, "InvalidTimeline", loads.read_timelines, {}),
            checked(pod, "InvalidShape", loads.read_shapes, {}),
            checked(pod, "InvalidGpuMemory", loads.read_memory, {}),
            full_load,
        )

    def _class_of(self, pod: Pod) -> str:
        """Return the priority class of a pod's kind or PodGroup."""
        node = pod.spec.node_name
        return kinds.class_of(pod, lambda namespace, name: self.find_class(namespace, name, node))

    def user(self, pod: Pod, load: loads.Load, ref: PodRef, room: int, total: int) -> User:
        """Return a container as the user of a GPU of `total` MiB, of which it may have `room`; too much is reported."""
        if load.memory_mib is not None and load.memory_mib > room:
            problem = f"{load.memory_mib}Mi is more than the container has of a GPU; at most {room}Mi"
            self._configuration.report(
                subject_of(pod), "GpuMemoryExceeded", f"{vocabulary.MEMORY_ANNOTATION}: {problem}"
            )
        return load.user(ref, room, total)

    def holder_user(self, holder: Holder, memory: int, *, works: bool) -> User:
        """Return the container that has a GPU of `memory` MiB, or a share of it, as its user."""
        pod, meta = holder.pod, holder.pod.metadata
        ref = PodRef(meta.name, meta.namespace, holder.container, meta.uid)
        if holder.reserves or holder.observes:
            return User(ref, share=0.0, reserves=holder.reserves, part=holder.part)
        checked = self._configuration.checked
        fraction = checked(pod, "InvalidFraction", reserving.fraction, 1.0)
        room, load = int(memory * holder.share * fraction), self.of(pod).of(holder.container, works=works)
        if (
            holder.claims
            and (amount := checked(pod, "InvalidSharedMemory", reserving.absolute_memory, None)) is not None
        ):
            room, load = memory, msgspec.structs.replace(load, memory_mib=amount)
        user = self.user(pod, load, ref, room, memory)
        return user if holder.part is None else msgspec.structs.replace(user, part=holder.part)

    def annotate_reservations(self, pods: Store[Pod], listed: Mapping[str, Sequence[User]]) -> None:
        """Annotate each reservation pod with what it holds, the first of several, unless it is already.

        That is a GPU, or a MIG instance, by id.
        """
        done: set[str] = set()
        for gpu, user in ((gpu, user) for gpu, items in listed.items() for user in items if user.reserves):
            ref = user.pod
            pod = pods.get(ref.name, namespace=ref.namespace)
            if pod is not None and ref.uid not in done and vocabulary.RUNAI_RESERVED not in pod.metadata.annotations:
                held = gpu if user.part is None else part_id(gpu, user.part)
                patch = {"metadata": {"annotations": {vocabulary.RUNAI_RESERVED: held}}}
                self._writer.merge(Target(resources.PODS, ref.name, ref.namespace), patch, observed=pod, urgent=True)
            done.add(ref.uid)

    def report_ended(self, pods: Store[Pod], user: User, message: str) -> None:
        """Report that a container crossed a limit, of its profile or its GPU; let its pod fail if it asks for that."""
        pod = pods.get(user.pod.name, namespace=user.pod.namespace)
        if pod is None or pod.metadata.uid != user.pod.uid or not requests.holds(pod):
            return
        about = f"container {user.pod.container}: {message}"
        self._configuration.report(subject_of(pod), _REASON, about)
        action = self._configuration.checked(pod, "InvalidOnLimit", loads.read_on_limit, vocabulary.REPORT_LIMIT)
        if action == vocabulary.FAIL_AT_LIMIT:
            target = Target(resources.PODS, pod.metadata.name, pod.metadata.namespace, subresource="status")
            status = {"phase": "Failed", "reason": _REASON, "message": about}
            self._writer.merge(target, {"status": status}, observed=pod, urgent=True)
