"""What nvidia-smi reads in a container of a pod on a fake node: pages of its GPUs, or why there are none."""

from __future__ import annotations

import base64
from collections.abc import Sequence

from simgpu.dashboard import answers, reading
from simgpu.dashboard.sources import DashboardSource
from simgpu.errors import InputError
from simgpu.kube.views import Pod
from simgpu.machines.fleet import pod_usage
from simgpu.machines.machine import Machine
from simgpu.machines.users import PodRef, User
from simgpu.page import portrait


class _Refused(Exception):
    """There are no pages; the answer has the reason."""

    def __init__(self, state: str, message: str, node: str = "") -> None:
        super().__init__(message)
        self.answer = answers.ContainerGpus(state, message, node=node)


def of_container(source: DashboardSource, namespace: str, name: str, container: str) -> answers.ContainerGpus:
    """Return the pages of a container, by default the first one that has GPUs."""
    try:
        return _answer(source, PodRef(name, namespace), container)
    except _Refused as refused:
        return refused.answer


def _answer(source: DashboardSource, ref: PodRef, container: str) -> answers.ContainerGpus:
    where = f"pod {ref.namespace}/{ref.name}"
    pod = source.pod(ref)
    if pod is None:
        raise _Refused("unknown", f"there is no {where} on a node")
    containers = [item.name for item in (*pod.spec.init_containers, *(pod.spec.containers or ()))]
    if container and container not in containers:
        raise _Refused("unknown", f"{where} has no container {container}; it has: {', '.join(containers)}")
    node = pod.spec.node_name
    machine = _machine(source, pod, where)
    users = _users(machine, pod)
    if not users:
        raise _Refused("empty", f"{where} has no GPUs", node)
    if pod.status.phase != "Running":
        raise _Refused("stopped", f"{where} does not run: it is {pod.status.phase}", node)
    named = {user.pod.container for _, user in users}
    chosen = container or next((item for item in containers if item in named), "")
    own = [(place, user) for place, user in users if user.pod.container == chosen]
    if not own:
        raise _Refused("empty", f"container {chosen} of {where} has no GPUs", node)
    try:
        pages = portrait.pages(machine, _holdings(machine, own), process=chosen or ref.name)
    except InputError as error:
        raise _Refused("empty", f"{where} has no GPUs that nvidia-smi can show: {error}", node) from None
    if not pages:
        raise _Refused("empty", f"container {chosen} of {where} has no GPUs: its MIG instances are gone", node)
    encoded = [answers.GpuPage(page.id, base64.b64encode(page.row.tobytes()).decode()) for page in pages]
    return answers.ContainerGpus("running", node=node, container=chosen, time=round(machine.time, 3), pages=encoded)


def _machine(source: DashboardSource, pod: Pod, where: str) -> Machine:
    """Return the GPUs of a pod's node, if it is a fake one."""
    node = pod.spec.node_name
    machine = source.machine_of(node) if source.role == "controller" else None
    if machine is None and (source.role != "controller" or reading.waits_for_gpus(pod, source.renamed_resources())):
        raise _Refused("real", f"{where} is on node {node}, which is no fake one of ours: use kubectl exec", node)
    if machine is None:
        raise _Refused("empty", f"{where} has no GPUs", node)
    return machine


def _users(machine: Machine, pod: Pod) -> list[tuple[int, User]]:
    """Return the places and users of a pod's GPUs."""
    uid = pod.metadata.uid
    return [(place, user) for place, users in sorted(machine.users.items()) for user in users if user.pod.uid == uid]


def _holdings(machine: Machine, own: Sequence[tuple[int, User]]) -> list[portrait.Holding]:
    """Return what a container has of each GPU: of a whole one that its pod uses, by the memory of its containers."""
    uid = own[0][1].pod.uid
    used = {index: (percent, memory) for pod, index, percent, memory in pod_usage(machine) if pod == uid}
    found: list[portrait.Holding] = []
    for place, user in own:
        if user.part is not None:
            row = machine.part_rows.get(place, {}).get(user.part)
            usage = 0.0 if row is None else float(machine.part_column("usage")[row])
        else:
            percent, memory = used.get(machine.devices[place].index, (0.0, 0.0))
            usage = percent * user.memory_mib * 2**20 / memory if memory else percent
        found.append(portrait.Holding(place, user.part, usage, user.memory_mib))
    return found
