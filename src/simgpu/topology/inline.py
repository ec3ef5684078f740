"""GPUs of one node in a line of text: `MODEL:COUNT`, several of them with commas."""

from __future__ import annotations

import re

from simgpu import errors
from simgpu.catalog import models
from simgpu.topology.pools import MAX_GPUS, NodeGpu, NodeGpus


def parse(text: str, catalog: models.Catalog, *, field: str) -> NodeGpus:
    """Returns the GPUs of a text such as `h200:8` or `h200:4,t4:2`."""
    gpus: list[NodeGpu] = []
    for item in text.split(","):
        name, _, count = item.strip().partition(":")
        if not re.fullmatch("[0-9]{1,5}", count) or not 0 < int(count) <= MAX_GPUS:
            raise errors.InputError(field, f"{errors.shown(item)}: must be MODEL:COUNT, at most {MAX_GPUS}")
        if len(gpus) + int(count) > MAX_GPUS:
            raise errors.InputError(field, f"a node has at most {MAX_GPUS} GPUs")
        gpus += [NodeGpu(catalog.get(name, field=field))] * int(count)
    return NodeGpus(tuple(gpus))
