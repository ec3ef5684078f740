"""Which server a command reads from: one by its URL, that of a local cluster, or that of a kubeconfig's cluster."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from simgpu import errors

if TYPE_CHECKING:
    from simgpu.kube.kubeconfig import ClientConfig
    from simgpu.top.feeds import Feed

LOCAL_NAME = "simgpu"  # of the local cluster


class KubectlPlugin:
    """The object of a command's context when kubectl has started it: the default cluster is kubectl's."""


class ServerSource:
    """Where to read from: a URL, a cluster by its kubeconfig, or a local one by name."""

    def __init__(
        self, *, url: str | None = None, target: ClientConfig | None = None, file: Path | None = None, name: str = ""
    ) -> None:
        self._url, self._target, self._file, self._name = url, target, file, name

    @property
    def namespace(self) -> str:
        """The namespace of pods that are named without one."""
        return self._target.namespace if self._target is not None else "default"

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[Feed]:
        """Connect."""
        from simgpu.top import feeds

        local = self._name or (_local_name(self._target, self._file) if self._target is not None else None)
        if self._target is not None and local is None:
            async with _proxied(self._target) as feed:
                yield feed
            return
        url = feeds.base_of(self._url, field="URL") if self._url is not None else _local_url(str(local))
        async with feeds.UrlFeed(url).open() as feed:
            yield feed


def chosen(url: str | None, name: str, kubeconfig: Path | None, *, context: str | None = None) -> ServerSource:
    """Return what the options of a command ask for; `name` is the default without any."""
    from simgpu.kube import kubeconfig as config

    current = click.get_current_context()
    named = current.get_parameter_source("name") != ParameterSource.DEFAULT
    given = {
        "URL": url is not None, "--name": named, "--kubeconfig": kubeconfig is not None or context is not None,
    }  # fmt: skip
    if sum(given.values()) > 1:
        first, second = [option for option, is_given in given.items() if is_given][:2]
        raise errors.InputError(second, f"cannot be combined with {'a URL' if first == 'URL' else first}")
    if url is not None:
        return ServerSource(url=url)
    if given["--kubeconfig"] or (isinstance(current.obj, KubectlPlugin) and not named):
        return ServerSource(target=config.load(kubeconfig, context=context), file=kubeconfig)
    return ServerSource(name=name)


@contextlib.asynccontextmanager
async def _proxied(target: ClientConfig) -> AsyncIterator[Feed]:
    from simgpu.kube import wire
    from simgpu.kube.client import Client
    from simgpu.top import services

    async with Client(target, retries=wire.Retries(attempts=1), timeout_seconds=30.0) as client:
        yield await services.find(client, target.server)


def _local_url(name: str) -> str:
    from simgpu import app
    from simgpu.cluster import lifecycle

    return lifecycle.endpoints(name, app.cluster_roles())["dashboard"].rstrip("/")


def _local_name(target: ClientConfig, file: Path | None) -> str | None:
    """Return the name of the local cluster that a configuration is of, if any: its controller is no Service."""
    from simgpu.cluster import record

    for name in record.known_names():
        folder = record.Folder(name)
        own, known = folder.kubeconfig, folder.load()
        if known is None or "metrics" not in known.ports:
            continue  # only its control plane is ours
        same = file is not None and own.exists() and file.exists() and own.samefile(file)
        if same or known.server == target.server:
            return name
    return None
