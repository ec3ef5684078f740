"""What API servers answer to questions about themselves, and what load tests watch."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

from simgpu.controllers import dra_fleet
from simgpu.dra import versions
from simgpu.kube import client as kube_client
from simgpu.kube import errors as kube_errors
from simgpu.kube import permissions, resources, views, watching
from simgpu.kube.kubeconfig import ClientConfig
from simgpu.kube.resources import Resource
from simgpu.kube.store import Store, key_of_identity
from simgpu.loadtest import abandoned, watched
from simgpu.loadtest.measurements import claim_allocation, controlled_pods
from simgpu.loadtest.served import Served, converted
from tests.fuzz.target import Target, awaited, no_error_logged, numbered, split

_SEPARATOR = b"\0|\0"
_KINDS = (
    ("v1", "Pod"), ("batch/v1", "Job"), ("apps/v1", "Deployment"), ("resource.k8s.io/v1beta2", "ResourceClaim"),
    ("resource.k8s.io/v1", "ResourceSlice"), ("x", "y"),
)  # fmt: skip
_BODY: dict[str, Any] = {
    "apiVersion": "resource.k8s.io/v1beta2", "kind": "ResourceSlice",
    "spec": {"devices": [{"name": "d", "basic": {}}, {"requests": [{"name": "r", "exactly": {}}]}]},
}  # fmt: skip
_MAX_REQUESTS = 200
_WATCHED = (
    watched.PODS, watched.claims("v1"), watched.controllers(resources.JOBS),
    watched.controllers(resources.DEPLOYMENTS),
    watched.controllers(Resource("ReplicaSet", "replicasets", views.Object, group="apps")),
)  # fmt: skip


class _Answers:
    """A connection whose answers are the parts of an input in turn, again and again."""

    def __init__(self, data: bytes) -> None:
        self._parts = data.split(_SEPARATOR)
        self._count = 0

    async def send(self, call: object) -> bytes:
        assert call is not None
        self._count += 1
        assert self._count < _MAX_REQUESTS
        return self._parts[(self._count - 1) % len(self._parts)]


def _client(data: bytes) -> kube_client.Client:
    made = kube_client.Client(ClientConfig("http://a"))
    made._wire = _Answers(data)  # type: ignore[assignment]
    return made


async def _served(client: kube_client.Client) -> None:
    served = Served(client)
    for version, kind in _KINDS:
        with contextlib.suppress(kube_errors.KubeError):
            found = await served.resource(version, kind)
            assert found.kind == kind
            found.path("a", namespace="ns")
            assert converted(_BODY, found)["apiVersion"] == found.api_version
    assert await served.dra_version() in (None, *versions.VERSIONS)
    assert all(isinstance(note, str) for note in served.notes)


async def _leftovers(client: kube_client.Client) -> None:
    for resource in (await abandoned._kinds(client))[:20]:
        resource.path("a", namespace="ns" if resource.namespaced else "")


async def _dra(client: kube_client.Client) -> None:
    api = await dra_fleet.discover(client)
    assert api is None or 0 <= api.minor < 10_000


async def _review(client: kube_client.Client) -> None:
    assert isinstance(await permissions.may(client, "list", resources.PODS), bool)


_READERS: tuple[Callable[[kube_client.Client], Awaitable[None]], ...] = (_served, _leftovers, _dra, _review)


async def _discovery(data: bytes) -> None:
    """What a server serves and allows is known, or its answer is reported as unreadable."""
    number, rest = split(data, len(_READERS))
    try:
        await _READERS[number](_client(rest))
    except kube_errors.KubeError as error:
        str(error).encode()


async def _pieces(data: bytes) -> Any:
    yield data


async def _watch(data: bytes) -> None:
    """Whatever a load test watches, its measurements follow, and no object that ended or went is waited for."""
    waits, times = controlled_pods.WaitForControlledPodsRunning(None), claim_allocation._ClaimTimes()  # type: ignore[arg-type]
    times.live = True
    listeners = ((waits._pod, times.pod), (times.claim,), (waits._owner,), (waits._owner,), (waits._replica_set,))
    with no_error_logged(), contextlib.suppress(kube_errors.KubeError):
        for part in data.split(_SEPARATOR)[:8]:
            number, rest = split(part, len(_WATCHED))
            read: watching.EventDecoder[Any] = watching.EventDecoder(_WATCHED[number])
            others: list[Store[Any]] = []
            store = watched.SharingStore(others)
            others.append(store)
            for listener in listeners[number]:
                store.listen(listener)
            async with (
                contextlib.aclosing(_pieces(rest)) as pieces,
                contextlib.aclosing(watching.lines(pieces)) as found,
            ):
                async for batch in found:
                    for line in batch:
                        _apply(read(line), store)
            for view in store:
                assert getattr(view, "devices", 0) >= 0
                assert getattr(view, "gpus", 0) >= 0
    assert all(times_of >= 0 for times_of in times.allocation)
    waits._resource = watched.controllers(resources.JOBS)
    waits._late("id", list(waits._watched)).encode()


def _apply(event: object, store: Store[Any]) -> None:
    if isinstance(event, watching.Deleted):
        store.remove(key_of_identity(event.metadata))
    elif not isinstance(event, watching.Bookmark):
        store.put(event.object)  # type: ignore[attr-defined]


_META = '"metadata":{"name":"a","namespace":"ns","uid":"u","resourceVersion":"%d","ownerReferences":[%s]}'
_OWNER = '{"kind":"%s","name":"o","uid":"%s","controller":true}'


def _events(*bodies: tuple[str, str, str]) -> bytes:
    """Return a stream of events: the type, an owner, and the rest of the object."""
    lines = (
        f'{{"type":"{kind}","object":{{{_META % (number, owner)},{body}}}}}\n'
        for number, (kind, owner, body) in enumerate(bodies)
    )
    return "".join(lines).encode()


_LIMITS = '"resources":{"limits":{"nvidia.com/gpu":"1"}}'
_POD = f'"spec":{{"nodeName":"n","containers":[{{{_LIMITS}}}],"volumes":[{{"secret":{{}}}}]}}'
_RUNS = '"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}'
_ENDED = '"conditions":[{"type":"Complete","status":"True"}]'
_JOB = f'"spec":{{"parallelism":2,"completions":3}},"status":{{"succeeded":1,{_ENDED}}}'
_CLAIM = '"status":{"allocation":{"devices":{"results":[{}]}}}'
_STREAMS = (
    b"\2" + _events(("ADDED", "", _JOB)),
    b"\0" + _events(("ADDED", _OWNER % ("Job", "u"), f"{_POD},{_RUNS}"), ("DELETED", _OWNER % ("Job", "u"), _POD)),
    b"\1" + _events(("ADDED", _OWNER % ("Pod", "u"), '"status":{}'), ("MODIFIED", "", _CLAIM)),
    b"\4" + _events(("ADDED", _OWNER % ("Deployment", "d"), '"spec":{"replicas":1}')),
    b"\3" + _events(("ADDED", "", '"spec":{"replicas":1},"status":{"desiredNumberScheduled":1}')),
)
_LIST = (
    b'{"kind":"APIResourceList","groupVersion":"v1","resources":[{"name":"pods","singularName":"pod","namespaced":true,'
    b'"kind":"Pod","verbs":["list","delete"]},{"name":"resourceclaims","namespaced":true,"kind":"ResourceClaim",'
    b'"verbs":["list"]},{"name":"resourceslices","namespaced":false,"kind":"ResourceSlice","verbs":[]}]}'
)
_GROUP = b'{"name":"resource.k8s.io","versions":[{"groupVersion":"resource.k8s.io/v1","version":"v1"}]}'
_GROUPS = b'{"groups":[{"name":"apps","preferredVersion":{"groupVersion":"apps/v1","version":"v1"}}]}'
_VERSION = b'{"major":"1","minor":"36+","gitVersion":"v1.36.0"}'
_REVIEW = b'{"kind":"SelfSubjectAccessReview","metadata":{},"status":{"allowed":true,"reason":"x"}}'

TARGETS = (
    Target(
        "api-discovery", awaited(_discovery),
        numbered([
            [_LIST, _SEPARATOR.join((_LIST, _LIST, _LIST, _LIST, _GROUP, _LIST))], [_SEPARATOR.join((_GROUPS, _LIST))],
            [_SEPARATOR.join((_LIST, _VERSION))], [_REVIEW],
        ]), ("\0|\0", *(kind for _, kind in _KINDS)),
    ),
    Target(
        "watched-objects", awaited(_watch), (*_STREAMS, _SEPARATOR.join(_STREAMS)), ("\0|\0", "ownerReferences")
    ),
)  # fmt: skip
