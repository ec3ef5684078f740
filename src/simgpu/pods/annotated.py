"""Annotations of pods: text from whoever may write a pod, bounded in length before anything looks into it."""

from __future__ import annotations

from simgpu import errors
from simgpu.kube.views import Pod

MAX_LENGTH = 64  # characters; the API server would let them have 256 KiB


def read(pod: Pod, name: str) -> str | None:
    """An annotation's text, None where there is none; one that is too long is an error that names it."""
    text = pod.metadata.annotations.get(name)
    if text is not None and len(text) > MAX_LENGTH:
        raise errors.InputError(name, f"{text[:40]!r} goes on for {len(text)} characters; at most {MAX_LENGTH}")
    return text
