"""The API client: one method per verb, with typed results.

Writes are create, patch, apply and delete, never update (PUT): views hold only part of an object. Sending and retrying
requests is left to `wire`.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from types import TracebackType
from typing import Any, Generic, Literal, NamedTuple, Self, TypeVar

import msgspec

from simgpu.kube import errors, wire
from simgpu.kube.kubeconfig import ClientConfig
from simgpu.kube.resources import Resource, V
from simgpu.kube.wire import Call, Params, Retries, Sizes

_log = logging.getLogger(__name__)

PAGE_SIZE = 2500

PatchKind = Literal["merge", "json", "apply"]
_CONTENT_TYPES: dict[PatchKind, str] = {
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
    "apply": "application/apply-patch+yaml",  # JSON is valid YAML
}
_DRY_RUN: Params = {"dryRun": "All"}

Body = dict[str, Any] | msgspec.Struct  # a plain dict may leave out apiVersion and kind
T = TypeVar("T")


class Listing(NamedTuple, Generic[V]):
    """A whole collection and the resource version that it was read at."""

    items: list[V]
    resource_version: str


class ApiResource(msgspec.Struct, frozen=True):
    """One resource in the answer to API discovery."""

    name: str
    kind: str
    namespaced: bool
    verbs: list[str] = []


class _ApiResourceList(msgspec.Struct, frozen=True):
    resources: list[ApiResource] = []


class Client:
    """A client of one API server. Use it as an async context manager."""

    def __init__(
        self,
        config: ClientConfig,
        *,
        retries: Retries | None = None,
        sizes: Sizes | None = None,
        timeout_seconds: float = 60.0,
    ) -> None:
        self._wire = wire.Wire(
            config, retries=retries or Retries(), sizes=sizes or Sizes(), timeout_seconds=timeout_seconds
        )
        self.requests = self._wire.requests

    async def __aenter__(self) -> Self:
        await self._wire.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._wire.close()

    # Reading

    async def get(self, resource: Resource[V], name: str, *, namespace: str = "") -> V:
        """Return one object."""
        call = Call("GET", resource.path(name, namespace=namespace), ("get", resource.plural))
        return decode(await self._wire.send(call), resource.view)

    async def find(self, resource: Resource[V], name: str, *, namespace: str = "") -> V | None:
        """Return one object, or None if it does not exist."""
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
        """Return all objects that match, read in pages."""
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
    ) -> Listing[V]:
        """Return all objects that match, with the resource version that a watch can start from."""
        params = selectors(labels, fields)
        path = resource.path(namespace=namespace)
        try:
            return await self._pages(resource, path, params | ({"limit": str(page_size)} if page_size else {}))
        except errors.Gone:  # the continue token expired while we were reading: read everything in one request
            return await self._pages(resource, path, params)

    async def _pages(self, resource: Resource[V], path: str, params: Params) -> Listing[V]:
        items: list[V] = []
        token = ""
        while True:
            query = {**params, "continue": token} if token else params
            call = Call("GET", path, ("list", resource.plural), query, listing=True)
            page = _page(await self._wire.send(call), resource)
            items.extend(page.items or ())
            if not page.metadata.continue_:
                return Listing(items, page.metadata.resource_version)
            if page.metadata.continue_ == token:
                raise errors.UnreadableAnswer(f"{path}: a part of the list refers to itself as the next one")
            token = page.metadata.continue_

    async def some(
        self, resource: Resource[V], *, fields: str = "", limit: int, after: str = ""
    ) -> tuple[Sequence[V], str]:
        """Return objects that match, at most so many, in one request; and a token for those `after` them, if any."""
        params = {**selectors("", fields), "limit": str(limit), **({"continue": after} if after else {})}
        call = Call("GET", resource.path(), ("list", resource.plural), params, listing=True)
        page = _page(await self._wire.send(call), resource)
        return page.items or [], page.metadata.continue_

    async def discover(self, api_version: str) -> Sequence[ApiResource]:
        """Return the resources of an API group and version; NotFound if the server does not serve it."""
        root = "apis" if "/" in api_version else "api"
        body = await self._wire.send(Call("GET", f"/{root}/{api_version}", ("get", "discovery")))
        return decode(body, _ApiResourceList).resources

    async def raw(self, path: str) -> bytes:
        """Return the response body of any path, such as `/readyz` or `/version`."""
        return await self._wire.send(Call("GET", path, ("get", "raw")))

    def raw_stream(self, path: str, *, silence_seconds: float) -> AsyncGenerator[bytes, None]:
        """Yield the pieces of a response that does not end, of any path."""
        return self._wire.stream(Call("GET", path, ("get", "raw")), silence_seconds=silence_seconds)

    def stream(
        self,
        resource: Resource[Any],
        params: Params,
        *,
        namespace: str = "",
        silence_seconds: float,
        gather_seconds: float = wire.GATHER_SECONDS,
    ) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of a watch; `watching` decodes them."""
        call = Call("GET", resource.path(namespace=namespace), ("watch", resource.plural), params)
        return self._wire.stream(call, silence_seconds=silence_seconds, gather_seconds=gather_seconds)

    # Writing

    async def create(
        self,
        resource: Resource[V],
        body: Body,
        *,
        namespace: str = "",
        name: str = "",
        subresource: str = "",
        dry_run: bool = False,
    ) -> V:
        """Create an object, or post to a sub-resource such as `eviction`; a dry run stores nothing."""
        path = resource.path(name, namespace=namespace, subresource=subresource)
        data = msgspec.json.encode(body if subresource else _named(resource, body))
        params = _DRY_RUN if dry_run else None
        call = Call("POST", path, ("create", resource.plural), params, data, repeatable=dry_run)
        return decode(await self._wire.send(call), resource.view)

    async def merge_patch(
        self,
        resource: Resource[V],
        name: str,
        patch: Body,
        *,
        namespace: str = "",
        subresource: str = "",
        dry_run: bool = False,
    ) -> V:
        """Change the fields in the patch; null removes a field. A dry run stores nothing."""
        data, params = msgspec.json.encode(patch), _DRY_RUN if dry_run else None
        answer = await self.patch(
            resource, name, data, kind="merge", namespace=namespace, subresource=subresource, params=params
        )
        return decode(answer, resource.view)

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
        data = msgspec.json.encode(operations)
        answer = await self.patch(resource, name, data, kind="json", namespace=namespace, subresource=subresource)
        return decode(answer, resource.view)

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
        params = {"fieldManager": manager, "force": "true" if force else "false"}
        data = encode_apply(resource, name, body)
        answer = await self.patch(
            resource, name, data, kind="apply", namespace=namespace, subresource=subresource, params=params
        )
        return decode(answer, resource.view)

    async def patch(
        self,
        resource: Resource[Any],
        name: str,
        data: bytes,
        *,
        kind: PatchKind,
        namespace: str = "",
        subresource: str = "",
        params: Params | None = None,
    ) -> bytes:
        """Send an encoded patch and return the response body."""
        path = resource.path(name, namespace=namespace, subresource=subresource)
        count, content_type = ("patch", resource.plural), _CONTENT_TYPES[kind]
        call = Call("PATCH", path, count, params, data, content_type, repeatable=kind != "json")
        return await self._wire.send(call)

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
        """Delete one object, with `uid` only if it has that UID. False if it did not exist."""
        options: dict[str, Any] = {"propagationPolicy": propagation}
        if uid:
            options["preconditions"] = {"uid": uid}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        path, data = resource.path(name, namespace=namespace), msgspec.json.encode(options)
        try:
            await self._wire.send(Call("DELETE", path, ("delete", resource.plural), data=data))
        except errors.NotFound:
            return False
        return True

    async def delete_all(self, resource: Resource[V], *, namespace: str = "", labels: str = "") -> None:
        """Delete a collection, in one request."""
        data = msgspec.json.encode({"propagationPolicy": "Background"})
        path, count = resource.path(namespace=namespace), ("deletecollection", resource.plural)
        await self._wire.send(Call("DELETE", path, count, selectors(labels, ""), data, listing=True))


def selectors(labels: str, fields: str) -> Params:
    """Return query parameters for label and field selectors."""
    pairs = {"labelSelector": labels, "fieldSelector": fields}
    return {name: value for name, value in pairs.items() if value}


def encode_apply(resource: Resource[Any], name: str, body: Body) -> bytes:
    """Return the encoded body of a server-side apply, with kind and name."""
    return msgspec.json.encode(_named(resource, body, name))


def _named(resource: Resource[Any], body: Body, name: str = "") -> Body:
    """Return the body with apiVersion and kind, and with the name if one is given."""
    if not isinstance(body, dict):
        return body
    named = {"apiVersion": resource.api_version, "kind": resource.kind, **body}
    if name:
        named["metadata"] = {"name": name, **body.get("metadata", {})}
    return named


# Decoding

_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}


def decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    """Return the decoder for `kind`; one per type is kept."""
    found = _decoders.get(kind)
    if found is None:
        found = _decoders[kind] = msgspec.json.Decoder(kind)
    return found


def decode(body: bytes | msgspec.Raw, kind: type[T]) -> T:
    """Decode a response body; raises UnreadableAnswer."""
    try:
        return decoder(kind).decode(body)
    except errors.DECODING as error:
        raise errors.UnreadableAnswer(f"the response is not a {kind.__name__}: {error}") from None


class _ListMeta(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class _Page(msgspec.Struct, Generic[T]):
    metadata: _ListMeta
    items: list[T] | None = None


def _page(body: bytes, resource: Resource[V]) -> _Page[V]:
    """Decode a page of a list. If an object does not fit its view, decode one by one and skip only those."""
    try:
        return decoder(_Page[resource.view]).decode(body)  # type: ignore[name-defined]
    except errors.DECODING:
        rough = decode(body, _Page[msgspec.Raw])
    page: _Page[V] = _Page(rough.metadata, [])
    for item in rough.items or ():
        try:
            page.items.append(decode(item, resource.view))  # type: ignore[union-attr]
        except errors.UnreadableAnswer as error:
            _log.warning("a %s was skipped: %s", resource.kind, error)
    return page
