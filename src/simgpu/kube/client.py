"""The client: one connection pool, typed answers, patient with a busy server.

Writes are creates, patches, applies and deletes: never a whole object put back, because views do not hold
whole objects. A request is tried again when that is safe: always after 429 or a failure that carries
`Retry-After`, and after other 5xx or a broken connection only if the verb can be repeated without harm.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import functools
import logging
import random
import ssl
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

import aiohttp
import msgspec

from simgpu.kube import auth, errors
from simgpu.kube.resources import Resource, V

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence
    from types import TracebackType

    from simgpu.kube.kubeconfig import Target

_log = logging.getLogger(__name__)

PAGE_SIZE = 2500
MAX_CONNECTIONS = 64

_READ_BUFFER = 1024 * 1024
_GATHER_SECONDS = 0.005
_LARGE = 256 * 1024
_LARGE_GATHER_SECONDS = 0.0005
_JSON = "application/json"
_MERGE = "application/merge-patch+json"
_JSON_PATCH = "application/json-patch+json"
_APPLY = "application/apply-patch+yaml"  # the server takes JSON here: it is YAML

Body = dict[str, Any] | msgspec.Struct  # a plain dict may leave out apiVersion and kind
Params = dict[str, str]


class Retries(msgspec.Struct, frozen=True):
    """How patient a client is with failures that may pass."""

    attempts: int = 6
    first_seconds: float = 0.1
    longest_seconds: float = 10.0

    def pause(self, attempt: int, retry_after: float | None) -> float:
        """Seconds to wait before the next try: what the server asked for, or a jittered back-off."""
        if retry_after is not None:
            return min(retry_after, self.longest_seconds) * random.uniform(1.0, 1.2)
        return min(self.first_seconds * 2.0**attempt, self.longest_seconds) * random.uniform(0.5, 1.0)


class ListMeta(msgspec.Struct, frozen=True, rename="camel"):
    """`metadata` of a list."""

    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


T = TypeVar("T")


class Listing(msgspec.Struct, frozen=True):
    """A whole collection at one resource version."""

    items: list[Any]
    resource_version: str


class ApiResource(msgspec.Struct, frozen=True):
    """One row of API discovery."""

    name: str
    kind: str
    namespaced: bool
    verbs: list[str] = []


class _ApiResourceList(msgspec.Struct, frozen=True):
    resources: list[ApiResource] = []


class _Call(NamedTuple):
    method: str
    path: str
    params: Params | None
    data: bytes | None = None
    content_type: str = _JSON


class Client:
    """Talks to one API server. Use it as an async context manager."""

    def __init__(self, target: Target, *, retries: Retries | None = None, timeout_seconds: float = 60.0) -> None:
        self.server = target.server
        self.namespace = target.namespace
        self.requests: collections.Counter[tuple[str, str]] = collections.Counter()
        self._target = target
        self._credentials = auth.Credentials(target)
        self._retries = retries or Retries()
        self._timeout = aiohttp.ClientTimeout(total=timeout_seconds, sock_connect=10)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=MAX_CONNECTIONS, ttl_dns_cache=60),
            headers={"Accept": _JSON, "Accept-Encoding": "identity", "User-Agent": "simgpu"},
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    # Reading

    async def get(self, resource: Resource[V], name: str, *, namespace: str = "") -> V:
        """One object."""
        body = await self.request("GET", resource.path(name, namespace=namespace), count=("get", resource.plural))
        return decoder(resource.view).decode(body)

    async def find(self, resource: Resource[V], name: str, *, namespace: str = "") -> V | None:
        """One object, or None where there is none."""
        try:
            return await self.get(resource, name, namespace=namespace)
        except errors.NotFound:
            return None

    async def list(
        self,
        resource: Resource[V],
        *,
        namespace: str = "",
        labels: str = "",
        fields: str = "",
        page_size: int = PAGE_SIZE,
    ) -> list[V]:
        """All objects that match, read in pages."""
        listing = await self.listing(resource, namespace=namespace, labels=labels, fields=fields, page_size=page_size)
        return listing.items

    async def listing(
        self,
        resource: Resource[V],
        *,
        namespace: str = "",
        labels: str = "",
        fields: str = "",
        page_size: int = PAGE_SIZE,
        resource_version: str | None = None,
    ) -> Listing:
        """Like `list`, with the resource version that a watch can start from."""
        params = selectors(labels, fields)
        if page_size:
            params["limit"] = str(page_size)
        if resource_version is not None:
            params["resourceVersion"] = resource_version
        try:
            return await self._pages(resource, namespace, params)
        except errors.Gone:  # the continue token aged while we were reading: one request for all of it
            params.pop("limit", None)
            return await self._pages(resource, namespace, params)

    async def _pages(self, resource: Resource[V], namespace: str, params: Params) -> Listing:
        path, decode = resource.path(namespace=namespace), _page_decoder(resource.view).decode
        items: list[V] = []
        token = ""
        while True:
            asked = {**params, "continue": token} if token else params
            if token:
                asked.pop("resourceVersion", None)
            body = await self.request("GET", path, params=asked, count=("list", resource.plural))
            try:
                page = decode(body)
            except msgspec.ValidationError:
                page = _decode_leniently(body, resource)
            items.extend(page.items)
            token = page.metadata.continue_
            if not token:
                return Listing(items, page.metadata.resource_version)

    async def discover(self, api_version: str) -> Sequence[ApiResource]:
        """The resources that a group and version serve; NotFound where the server does not have it."""
        root = "apis" if "/" in api_version else "api"
        body = await self.request("GET", f"/{root}/{api_version}", count=("get", "discovery"))
        return decoder(_ApiResourceList).decode(body).resources

    async def raw(self, path: str) -> bytes:
        """The bytes at any path, such as `/readyz` or `/version`."""
        return await self.request("GET", path, count=("get", "raw"))

    # Writing

    async def create(
        self, resource: Resource[V], body: Body, *, namespace: str = "", name: str = "", subresource: str = ""
    ) -> V:
        """Create an object, or post to a sub-resource such as `eviction`."""
        path = resource.path(name, namespace=namespace, subresource=subresource)
        body = body if subresource else _named(resource, body)
        answer = await self.request("POST", path, body=body, count=("create", resource.plural))
        return decoder(resource.view).decode(answer)

    async def merge_patch(
        self, resource: Resource[V], name: str, patch: Body, *, namespace: str = "", subresource: str = ""
    ) -> V:
        """Change the fields that the patch names; null removes one."""
        path = resource.path(name, namespace=namespace, subresource=subresource)
        return await self._patch(resource, path, patch, _MERGE, repeatable=True)

    async def json_patch(
        self,
        resource: Resource[V],
        name: str,
        operations: Sequence[Mapping[str, Any]],
        *,
        namespace: str = "",
        subresource: str = "",
    ) -> V:
        """Apply RFC 6902 operations in order; a failing `test` is Invalid."""
        path = resource.path(name, namespace=namespace, subresource=subresource)
        return await self._patch(resource, path, list(operations), _JSON_PATCH, repeatable=False)

    async def apply(
        self,
        resource: Resource[V],
        name: str,
        body: Body,
        *,
        manager: str,
        namespace: str = "",
        subresource: str = "",
        force: bool = False,
    ) -> V:
        """Server-side apply: own exactly the fields of `body`. Conflict unless forced."""
        path = resource.path(name, namespace=namespace, subresource=subresource)
        params = {"fieldManager": manager, "force": "true" if force else "false"}
        body = _named(resource, body, name)
        return await self._patch(resource, path, body, _APPLY, params=params, repeatable=True)

    async def _patch(
        self,
        resource: Resource[V],
        path: str,
        patch: Any,
        content_type: str,
        *,
        repeatable: bool,
        params: Params | None = None,
    ) -> V:
        answer = await self.request(
            "PATCH",
            path,
            body=patch,
            params=params,
            content_type=content_type,
            count=("patch", resource.plural),
            repeatable=repeatable,
        )
        return decoder(resource.view).decode(answer)

    async def delete(
        self,
        resource: Resource[V],
        name: str,
        *,
        namespace: str = "",
        uid: str = "",
        grace_seconds: int | None = None,
        propagation: str = "Background",
    ) -> bool:
        """Delete one object; with `uid` only that very one. False where it was not there."""
        options: dict[str, Any] = {"propagationPolicy": propagation}
        if uid:
            options["preconditions"] = {"uid": uid}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        path = resource.path(name, namespace=namespace)
        try:
            await self.request("DELETE", path, body=options, count=("delete", resource.plural))
        except errors.NotFound:
            return False
        return True

    async def delete_all(self, resource: Resource[V], *, namespace: str = "", labels: str = "") -> None:
        """Delete a collection, in one request."""
        path, params = resource.path(namespace=namespace), selectors(labels, "")
        options = {"propagationPolicy": "Background"}
        count = ("deletecollection", resource.plural)
        await self.request("DELETE", path, params=params, body=options, count=count)

    # The wire

    async def request(
        self,
        method: str,
        path: str,
        *,
        count: tuple[str, str],
        body: Any = None,
        params: Params | None = None,
        content_type: str = _JSON,
        repeatable: bool | None = None,
    ) -> bytes:
        """One request with its retries; the answer's bytes, or an error of the tree in `errors`."""
        data = msgspec.json.encode(body) if body is not None else None
        call = _Call(method, path, params, data, content_type)
        repeatable = method != "POST" if repeatable is None else repeatable
        for attempt in range(self._retries.attempts):
            self.requests[count] += 1
            try:
                return await self._once(call)
            except (errors.ApiError, errors.ConnectError) as error:
                if attempt + 1 == self._retries.attempts or not _may_repeat(error, repeatable=repeatable):
                    raise
                await asyncio.sleep(self._retries.pause(attempt, getattr(error, "retry_after", None)))
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def _once(self, call: _Call) -> bytes:
        grant = await self._credentials.current()
        status, answer, headers = await self._exchange(call, grant)
        if status == 401 and self._credentials.rejected(grant):
            status, answer, headers = await self._exchange(call, await self._credentials.current())
        if status >= 400:
            raise errors.from_response(status, answer, _retry_after(headers))
        return answer

    async def _exchange(self, call: _Call, grant: auth.Grant) -> tuple[int, bytes, Mapping[str, str]]:
        try:
            async with self._send(call, grant, self._timeout) as response:
                return response.status, await _body(response), response.headers
        except (aiohttp.ClientError, TimeoutError, ssl.SSLError) as error:
            raise self._unreachable(error) from error

    def _send(
        self, call: _Call, grant: auth.Grant, timeout: aiohttp.ClientTimeout
    ) -> contextlib.AbstractAsyncContextManager[aiohttp.ClientResponse]:
        if self._session is None:
            raise RuntimeError("the client is closed: use it inside 'async with'")
        headers = grant.headers
        if call.data is not None:
            headers = (*headers, ("Content-Type", call.content_type))
        return self._session.request(
            call.method,
            self.server + call.path,
            data=call.data,
            params=call.params,
            headers=headers,
            ssl=grant.ssl if grant.ssl is not None else True,
            server_hostname=self._target.tls_server_name,
            proxy=self._target.proxy_url,
            timeout=timeout,
            read_bufsize=_READ_BUFFER,
        )

    async def stream(
        self, path: str, params: Params, *, silence_seconds: float, count: tuple[str, str]
    ) -> AsyncGenerator[bytes, None]:
        """The chunks of an endless answer. A silence longer than `silence_seconds` is a ConnectError."""
        self.requests[count] += 1
        grant = await self._credentials.current()
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=silence_seconds)
        try:
            async with self._send(_Call("GET", path, params), grant, timeout) as response:
                if response.status >= 400:
                    if response.status == 401:
                        self._credentials.rejected(grant)
                    raise errors.from_response(response.status, await response.read(), _retry_after(response.headers))
                async for chunk in response.content.iter_any():
                    yield chunk
                    await _gather(response, _GATHER_SECONDS)
        except (aiohttp.ClientError, TimeoutError, ssl.SSLError) as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: BaseException) -> errors.ConnectError:
        return errors.ConnectError(f"{self.server}: {str(error) or type(error).__name__}")


async def _body(response: aiohttp.ClientResponse) -> bytes:
    """All of an answer. A large one comes in thousands of small pieces, which are better taken together."""
    parts: list[bytes] = []
    size = 0
    async for part in response.content.iter_any():
        parts.append(part)
        size += len(part)
        if size > _LARGE:
            await _gather(response, _LARGE_GATHER_SECONDS)
    return parts[0] if len(parts) == 1 else b"".join(parts)


async def _gather(response: aiohttp.ClientResponse, seconds: float) -> None:
    """Let a busy stream's next bytes gather in the kernel: one wake-up for many events costs far less than many."""
    transport = response.connection.transport if response.connection is not None else None
    if not isinstance(transport, asyncio.ReadTransport):
        return
    # Pausing TLS alone still wakes us for every record; the socket below it has no public name.
    socket_transport = getattr(getattr(transport, "_ssl_protocol", None), "_transport", None)
    paused: asyncio.ReadTransport = socket_transport or transport
    paused.pause_reading()
    try:
        await asyncio.sleep(seconds)
    finally:
        paused.resume_reading()


def _named(resource: Resource[Any], body: Body, name: str = "") -> Body:
    """The body with the kind that every object must carry, and its name where the path has one."""
    if not isinstance(body, dict):
        return body
    named = {"apiVersion": resource.api_version, "kind": resource.kind, **body}
    if name:
        named["metadata"] = {"name": name, **body.get("metadata", {})}
    return named


def selectors(labels: str, fields: str) -> Params:
    """Query parameters for label and field selectors."""
    pairs = {"labelSelector": labels, "fieldSelector": fields}
    return {name: value for name, value in pairs.items() if value}


def _may_repeat(error: errors.KubeError, *, repeatable: bool) -> bool:
    if isinstance(error, errors.TooManyRequests):
        return True
    if isinstance(error, errors.ServerError):
        return repeatable or error.retry_after is not None
    return isinstance(error, errors.ConnectError) and repeatable


def _retry_after(headers: Mapping[str, str]) -> float | None:
    try:
        return max(0.0, float(headers["Retry-After"]))
    except (KeyError, ValueError):
        return None


class _RawPage(msgspec.Struct):
    metadata: ListMeta
    items: list[msgspec.Raw]


class _Page(msgspec.Struct):
    metadata: ListMeta
    items: list[Any]


def _decode_leniently(body: bytes, resource: Resource[Any]) -> _Page:
    """A page without the objects that do not fit their view: one odd object must not hide the others."""
    raw = decoder(_RawPage).decode(body)
    page = _Page(raw.metadata, [])
    for item in raw.items:
        try:
            page.items.append(decoder(resource.view).decode(item))
        except msgspec.ValidationError as error:
            _log.warning("a %s was skipped, it does not fit its view: %s", resource.kind, error)
    return page


_decoders: dict[type[Any], msgspec.json.Decoder[Any]] = {}


def decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    """A decoder for `kind`, made once."""
    found = _decoders.get(kind)
    if found is None:
        found = _decoders[kind] = msgspec.json.Decoder(kind)
    return found


@functools.lru_cache(maxsize=64)
def _page_decoder(view: type[Any]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(msgspec.defstruct("Page", [("metadata", ListMeta), ("items", list[view])]))  # type: ignore[valid-type]


async def probe(url: str, *, timeout_seconds: float = 1.0) -> bool:
    """Whether a health endpoint answers 200; its certificate is not looked at."""
    timeout = aiohttp.ClientTimeout(total=timeout_seconds)
    try:
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url, ssl=False) as response:
            return response.status == 200
    except (aiohttp.ClientError, TimeoutError, OSError):
        return False
