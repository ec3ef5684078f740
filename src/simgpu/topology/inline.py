"""GPUs of one node in a line of text: `MODEL:COUNT`, several of them with commas."""

from __future__ import annotations

import re

from simgpu import errors
from simgpu.catalog import models
from simgpu.topology.pools import NodeGpu, NodeGpus
from simgpu.vocabulary import MAX_GPUS


def parse(text: str, catalog: models.Catalog, *, field: str) -> NodeGpus:
    """Return the GPUs of a text such as `h200:8` or `h200:4,t4:2`."""
    gpus: list[NodeGpu] = []
    for item in text.split(","):
        name, count = split(item, field=field)
        if len(gpus) + count > MAX_GPUS:
            raise errors.InputError(field, f"a node has at most {MAX_GPUS} GPUs")
        gpus += [NodeGpu(catalog.get(name, field=field))] * count
    return NodeGpus(tuple(gpus))


def split(text: str, *, field: str) -> tuple[str, int]:
    """Return the model's name and the count of `MODEL:COUNT`; whether there is such a model is not checked."""
    name, _, count = text.strip().rpartition(":")
    if not name or not re.fullmatch("[0-9]{1,5}", count) or not 1 <= int(count) <= MAX_GPUS:
        allowed = f"must be MODEL:COUNT, such as h200:8, with a count from 1 to {MAX_GPUS}"
        raise errors.InputError(field, f"{errors.shown(text)}: {allowed}")
    return name, int(count)
