"""Where a node's layout of MIG instances comes from, and what it makes of the node's GPUs.

The label `nvidia.com/mig.config` comes first, then the annotation `run.ai/mig.config`, then the pool. A layout that was
set by hand stays until the choice changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from simgpu import errors
from simgpu.catalog import models
from simgpu.topology import mig_files, mig_layouts
from simgpu.topology.pools import NodeGpu, NodeGpus, Topology
from simgpu.vocabulary import MAX_LABEL, MAX_NODE_ANNOTATION, MIG_CONFIG, RUNAI_MIG_CONFIG, RUNAI_MIG_SELECTED


class LayoutChoice(msgspec.Struct, frozen=True):
    """The layout that a node should have: the key of the label or annotation that has it, and its text.

    Without a key it is the pool's, whose settings are the `text` then, to be compared; without a text there is none.
    """

    key: str = ""
    text: str = ""

    def __bool__(self) -> bool:
        return bool(self.text)


def choose(labels: Mapping[str, str], annotations: Mapping[str, str], pool: NodeGpus) -> LayoutChoice:
    """Return the layout that a node should have."""
    if name := labels.get(MIG_CONFIG, ""):
        return LayoutChoice(MIG_CONFIG, name)
    if text := annotations.get(RUNAI_MIG_CONFIG, ""):
        return LayoutChoice(RUNAI_MIG_CONFIG, text)
    own = pool.mig
    return LayoutChoice("", own.config or (repr(own.layout) if own.layout else ""))


def apply(choice: LayoutChoice, pool: NodeGpus, topology: Topology) -> NodeGpus:
    """Return what a node of a pool has with the chosen layout; raises `InputError` with what is wrong with it.

    GPUs that the layout does not concern are as the pool has them.
    """
    if not choice.key:
        return pool
    _check_static(pool, choice.key)
    cards = [gpu.model for gpu in pool.gpus]
    if choice.key == MIG_CONFIG:
        if len(choice.text) > MAX_LABEL:
            raise errors.InputError(MIG_CONFIG, f"a label has at most {MAX_LABEL} characters")
        found = mig_layouts.divide_by_name(choice.text, topology.mig_configs, cards, field=MIG_CONFIG)
    else:
        found = mig_layouts.divide(_selected(choice.text), cards, field=RUNAI_MIG_CONFIG)
    return msgspec.structs.replace(pool, gpus=laid_out(pool.gpus, found))


def divided(pool: NodeGpus, configs: Mapping[str, mig_layouts.Layout], *, field: str) -> NodeGpus:
    """Return a pool with the layout of its own settings."""
    cards, own = [gpu.model for gpu in pool.gpus], pool.mig
    if own.layout or own.config:
        _check_static(pool, field)
    if own.layout:
        found = mig_layouts.divide(own.layout, cards, field=field)
    elif own.config:
        found = mig_layouts.divide_by_name(own.config, configs, cards, field=field)
    else:
        return pool
    return msgspec.structs.replace(pool, gpus=laid_out(pool.gpus, found))


def strategy(pool: NodeGpus, topology: Topology) -> str:
    """Return the MIG strategy of a node: the pool's, else the topology's."""
    return pool.mig.strategy or topology.mig_strategy


def with_strategy(pool: NodeGpus, topology: Topology | None) -> NodeGpus:
    """Return a pool whose MIG strategy is its own: without one, the topology's."""
    if pool.mig.strategy or topology is None or not pool.gpus:
        return pool
    return msgspec.structs.replace(pool, mig=msgspec.structs.replace(pool.mig, strategy=topology.mig_strategy))


def kept(pool: NodeGpus, current: NodeGpus) -> NodeGpus:
    """Return what a node of a pool has while its GPUs stay divided as they are."""
    return msgspec.structs.replace(pool, gpus=laid_out(pool.gpus, layouts(current, pool)))


def layouts(current: NodeGpus | None, pool: NodeGpus) -> list[mig_layouts.CardLayout | None]:
    """Return how each GPU of a pool is divided now; None for one that is not there yet."""
    had = current.gpus if current is not None else ()
    return [
        had[index].layout if index < len(had) and _same_card(had[index].model, gpu.model) else None
        for index, gpu in enumerate(pool.gpus)
    ]


def _same_card(one: models.Model, other: models.Model) -> bool:
    """Return whether two models are divided alike: a view has no more of them, and a new driver changes no layout."""
    return one is other or (one.product, one.memory_mib.total, one.mig) == (
        other.product,
        other.memory_mib.total,
        other.mig,
    )


def laid_out(gpus: Sequence[NodeGpu], layouts: Sequence[mig_layouts.CardLayout | None]) -> tuple[NodeGpu, ...]:
    """Return GPUs with layouts; those whose layout is None stay as they are."""
    return tuple(
        gpu if layout is None or layout == gpu.layout else msgspec.structs.replace(gpu, layout=layout)
        for gpu, layout in zip(gpus, layouts, strict=True)
    )


def _check_static(pool: NodeGpus, field: str) -> None:
    if pool.allocation.divides:
        raise errors.InputError(field, "the pool has dra.dynamicMIG: its GPUs are divided by claims, not by a layout")


def _selected(text: str) -> mig_layouts.Layout:
    if len(text) > MAX_NODE_ANNOTATION:
        raise errors.InputError(RUNAI_MIG_CONFIG, f"at most {MAX_NODE_ANNOTATION} characters")
    found = mig_files.read(text, field=RUNAI_MIG_CONFIG)
    if RUNAI_MIG_SELECTED not in found:
        raise errors.InputError(f"{RUNAI_MIG_CONFIG}.mig-configs", f"must have a layout {RUNAI_MIG_SELECTED}")
    return found[RUNAI_MIG_SELECTED]
