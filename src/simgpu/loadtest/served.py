"""Which API versions the server serves, and objects in one of them.

A template may be written for a version that the server does not serve, such as v1beta2 of resource.k8s.io. Then the
object is created in a served version of the group; requests of claims and devices of slices are brought into its form.
"""

from __future__ import annotations

from typing import Any

import msgspec

from simgpu.dra import versions
from simgpu.kube import errors
from simgpu.kube.client import ApiResource, Client, decode
from simgpu.kube.resources import Resource
from simgpu.kube.views import Object


class UnknownKind(errors.KubeError):
    """The server does not serve a kind in any version."""


class _GroupVersion(msgspec.Struct, rename="camel"):
    version: str


class _Group(msgspec.Struct, rename="camel"):
    versions: list[_GroupVersion] = []


class Served:
    """Answers of API discovery, asked once each."""

    def __init__(self, client: Client) -> None:
        self.notes: list[str] = []
        self._client = client
        self._known: dict[tuple[str, str], Resource[Object]] = {}
        self._versions: dict[str, dict[str, ApiResource]] = {}

    async def resource(self, api_version: str, kind: str) -> Resource[Object]:
        """Return the resource of a kind, in this version or another that is served."""
        found = self._known.get((api_version, kind))
        if found is None:
            found = self._known[api_version, kind] = await self._find(api_version, kind)
        return found

    async def _find(self, api_version: str, kind: str) -> Resource[Object]:
        group, _, version = api_version.rpartition("/")
        for candidate in [version, *await self._others(group, version)]:
            full = f"{group}/{candidate}" if group else candidate
            served = (await self._kinds(full)).get(kind)
            if served is None:
                continue
            if candidate != version:
                self.notes.append(f"{api_version} {kind}: not served by this cluster; created as {full}")
            return Resource(kind, served.name, Object, group=group, version=candidate, namespaced=served.namespaced)
        raise UnknownKind(f"{api_version} {kind}: not served by this cluster")

    async def _others(self, group: str, version: str) -> list[str]:
        if not group:
            return []
        try:
            body = await self._client.raw(f"/apis/{group}")
        except errors.NotFound:
            return []
        listed = decode(body, _Group).versions
        return [item.version for item in listed if item.version != version]

    async def _kinds(self, api_version: str) -> dict[str, ApiResource]:
        if api_version not in self._versions:
            try:
                found = await self._client.discover(api_version)
            except errors.NotFound:
                found = []
            self._versions[api_version] = {item.kind: item for item in found if "/" not in item.name}
        return self._versions[api_version]

    async def dra_version(self, wanted: str = "") -> str | None:
        """Return the version of resource.k8s.io to use: the wanted one, or the newest that is served."""
        for version in (wanted,) if wanted else versions.VERSIONS:
            if "ResourceSlice" in await self._kinds(f"{versions.GROUP}/{version}"):
                return version
        return None


def converted(body: dict[str, Any], resource: Resource[Any]) -> dict[str, Any]:
    """Return an object in the version in which it is created."""
    if body.get("apiVersion") == resource.api_version:
        return body
    made = {**body, "apiVersion": resource.api_version}
    spec = body.get("spec")
    if resource.group != versions.GROUP or not isinstance(spec, dict):
        return made
    if resource.kind == "ResourceSlice" and isinstance(spec.get("devices"), list):
        made["spec"] = {**spec, "devices": [_device(item, resource.version) for item in spec["devices"]]}
    if resource.kind in {"ResourceClaim", "ResourceClaimTemplate"}:
        made["spec"] = _claim(spec, resource)
    return made


def _device(device: Any, version: str) -> Any:
    """Return a device of a slice: in v1beta1 its fields are below `basic`, after that at its top."""
    if not isinstance(device, dict) or "name" not in device:
        return device
    return versions.render_device(versions.read_device(device), version)


def _claim(spec: dict[str, Any], resource: Resource[Any]) -> dict[str, Any]:
    """Return the spec of a claim, or of a template of claims, with its requests in the form of the version."""
    outer = resource.kind == "ResourceClaimTemplate"
    inner = spec.get("spec") if outer else spec
    if not isinstance(inner, dict) or not isinstance(inner.get("devices"), dict):
        return spec
    devices = dict(inner["devices"])
    listed = devices.get("requests")
    if isinstance(listed, list):
        devices["requests"] = [_request(item, resource.version) for item in listed]
    changed = {**inner, "devices": devices}
    return {**spec, "spec": changed} if outer else changed


def _request(request: Any, version: str) -> Any:
    """Return a request for devices: in v1beta1 its fields are at its top, after that below `exactly`."""
    if not isinstance(request, dict):
        return request
    if version == "v1beta1":
        inner = request.get("exactly")
        return {key: value for key, value in request.items() if key != "exactly"} | (inner or {})
    if "deviceClassName" not in request:
        return request
    return {"name": request.get("name"), "exactly": {key: value for key, value in request.items() if key != "name"}}
