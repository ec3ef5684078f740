"""Annotations: text from any user who may write a pod or a node, so its length is checked before it is parsed."""

from __future__ import annotations

from simgpu import errors, vocabulary
from simgpu.kube.views import Node, Pod

LOADS = frozenset(
    (
        vocabulary.TIMELINE_ANNOTATION,
        vocabulary.SHAPE_ANNOTATION,
        vocabulary.ACTIVITY_ANNOTATION,
        vocabulary.MEMORY_ANNOTATION,
    )
)  # which may be long


def read(thing: Pod | Node, name: str) -> str | None:
    """Return an annotation's text, None if there is none; `InputError` if it is too long."""
    text = thing.metadata.annotations.get(name)
    limit = vocabulary.MAX_POD_ANNOTATION if isinstance(thing, Pod) else vocabulary.MAX_NODE_ANNOTATION
    limit = vocabulary.MAX_LOAD_ANNOTATION if name in LOADS else limit
    if text is not None and len(text) > limit:
        raise errors.InputError(name, f"{text[:40]!r} has {len(text)} characters; at most {limit} are allowed")
    return text
