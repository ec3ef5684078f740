"""Annotations: text from whoever may write a pod or a node, bounded in length before anything looks into it."""

from __future__ import annotations

from simgpu import errors, vocabulary
from simgpu.kube.views import Node, Pod


def read(thing: Pod | Node, name: str) -> str | None:
    """An annotation's text, None where there is none; one that is too long is an error that names it."""
    text = thing.metadata.annotations.get(name)
    longest = vocabulary.MAX_POD_ANNOTATION if isinstance(thing, Pod) else vocabulary.MAX_NODE_ANNOTATION
    if text is not None and len(text) > longest:
        raise errors.InputError(name, f"{text[:40]!r} goes on for {len(text)} characters; at most {longest}")
    return text
