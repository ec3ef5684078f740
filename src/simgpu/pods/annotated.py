"""Annotations: text from whoever may write a pod or a node, bounded in length before anything looks into it."""

from __future__ import annotations

from simgpu import errors
from simgpu.kube.views import Node, Pod

MAX_LENGTH = 64  # characters; the API server would let them have 256 KiB
MAX_NODE_LENGTH = 4096  # a node's may list GPUs and failures


def read(thing: Pod | Node, name: str) -> str | None:
    """An annotation's text, None where there is none; one that is too long is an error that names it."""
    text = thing.metadata.annotations.get(name)
    longest = MAX_LENGTH if isinstance(thing, Pod) else MAX_NODE_LENGTH
    if text is not None and len(text) > longest:
        raise errors.InputError(name, f"{text[:40]!r} goes on for {len(text)} characters; at most {longest}")
    return text
