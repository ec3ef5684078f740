"""Reads a configuration document of any format.

A document has pools, and nodes are in one by a label; or it names nodes. Pools may be written in three ways, mixed in
one document: `listed`, and fake-gpu-operator's older (`legacy`) and newer (`profiled`) form. All mistakes are found at
once, each with its path.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from simgpu import errors, yaml_text
from simgpu.catalog import models
from simgpu.topology import allocating, keys, legacy, listed, mig_choice, mig_files, named, profiled, settings
from simgpu.topology.checking import Checker
from simgpu.topology.mig_layouts import Layout
from simgpu.topology.pools import NodeGpus, Topology
from simgpu.vocabulary import EXTENDED, MAX_NAME, MIG_STRATEGIES, POOL_LABEL

_LABEL_KEY = re.compile(r"([a-z0-9.-]{1,253}/)?[A-Za-z0-9._-]{1,63}")


def parse(
    text: str,
    catalog: models.Catalog,
    profiles: profiled.Profiles = lambda _name: None,
    *,
    allocation: str = EXTENDED,
    mig_configs: Mapping[str, Layout] = {},
) -> Topology:
    """Return the topology of a document; raises `checking.Mistakes` if it has any.

    `allocation` is how pods get GPUs where the document does not say it; `mig_configs` are layouts besides its own.
    """
    check = Checker(catalog)
    document = _document(text, check)
    if document is not None:
        known = {**mig_configs, **_mig_configs(document, check)}
        found = _topology(document, check, profiles, allocation, known)
    else:
        found = Topology()
    check.raise_mistakes()
    return found


def _document(text: str, check: Checker) -> Mapping[str, Any] | None:
    try:
        document = yaml_text.parse(text)
    except ValueError as error:
        check.mistake("topology", str(error))
        return None
    if not isinstance(document, dict):
        check.mistake("topology", "is empty" if document is None else "must be a mapping")
        return None
    for chart_value in ("cluster", "topology"):  # values of a Helm chart, whose other keys are not read
        if isinstance(inner := document.get(chart_value), dict):
            return inner
    return document


def _topology(
    document: Mapping[str, Any],
    check: Checker,
    profiles: profiled.Profiles,
    allocation: str,
    configs: dict[str, Layout],
) -> Topology:
    check.known(document, keys.TOP, "")
    by_pool, by_node = check.mapping(document, "nodePools"), check.mapping(document, "nodes")
    if "nodePools" not in document and "nodes" not in document:
        check.mistake("nodePools", "is missing; a topology has nodePools, or nodes by name")
    strategy = document.get("migStrategy", document.get("mig-strategy", "mixed"))
    if strategy not in MIG_STRATEGIES:
        check.mistake("migStrategy", f"{errors.shown(strategy)}: must be one of {', '.join(MIG_STRATEGIES)}")
    key = document.get("nodePoolLabelKey", POOL_LABEL)
    if not isinstance(key, str) or not _LABEL_KEY.fullmatch(key):
        check.mistake("nodePoolLabelKey", f"{errors.shown(key)} is no label key")
    default = allocating.read(document, "", check, otherwise=allocating.GpuAllocation(allocation))

    def read_pool(pool: dict[str, Any], where: str) -> NodeGpus:
        return _allocated(_pool(pool, where, check, profiles), pool, where)

    def read_node(node: dict[str, Any], where: str) -> NodeGpus:
        return _allocated(_node(node, where, check), node, where)

    def _allocated(made: NodeGpus, holder: dict[str, Any], where: str) -> NodeGpus:
        found = allocating.read(holder, f"{where}.", check, otherwise=default)
        made = msgspec.structs.replace(made, allocation=found)
        return _divided(made, holder["mig"], configs, f"{where}.mig", check) if "mig" in holder else made

    return Topology(
        pools=_by_name(by_pool, "nodePools", check, read_pool),
        nodes=_by_name(by_node, "nodes", check, read_node),
        allocation=default,
        label_key=str(key),
        mig_strategy=str(strategy),
        mig_configs=configs,
        unknown=tuple(check.unknown),
    )


def _mig_configs(document: Mapping[str, Any], check: Checker) -> dict[str, Layout]:
    try:
        return (
            mig_files.parse_configs(document["mig-configs"], field="mig-configs") if "mig-configs" in document else {}
        )
    except errors.InputError as error:
        check.mistake(error.field, error.problem)
        return {}


def _divided(made: NodeGpus, document: Any, configs: Mapping[str, Layout], where: str, check: Checker) -> NodeGpus:
    """Return a node with the MIG settings and instances of its pool."""
    try:
        settings = mig_files.parse_settings(document, field=where)
        return mig_choice.divided(msgspec.structs.replace(made, mig=settings), configs, field=f"{where}.config")
    except errors.InputError as error:
        check.mistake(error.field, error.problem)
        return made


def _by_name(
    holder: Mapping[Any, Any], where: str, check: Checker, read: Callable[[dict[str, Any], str], NodeGpus]
) -> dict[str, NodeGpus]:
    found: dict[str, NodeGpus] = {}
    for name, item in holder.items():
        if len(str(name)) > MAX_NAME:
            check.mistake(where, f"{errors.shown(name)}: a name has at most {MAX_NAME} characters")
        elif not isinstance(item, dict):
            check.mistake(f"{where}.{name}", "must be a mapping")
        else:
            found[str(name)] = read(item, f"{where}.{name}")
            settings.check_replicas(found[str(name)], where=f"{where}.{name}", check=check)
    return found


def _pool(pool: dict[str, Any], where: str, check: Checker, profiles: profiled.Profiles) -> NodeGpus:
    if "gpus" in pool:
        made = listed.read(pool, where, check)
    elif "gpu" in pool:
        made = profiled.read(pool, where, check, profiles)
    else:
        made = legacy.read(pool, where, check)
    other = settings.other_resources(pool, where, check)
    numa = settings.numa(pool.get("numa"), where=f"{where}.numa", gpus=len(made.gpus), check=check)
    return msgspec.structs.replace(made, other=other, numa=numa, **settings.read(pool, where, check))


def _node(node: dict[str, Any], where: str, check: Checker) -> NodeGpus:
    return msgspec.structs.replace(named.read(node, where, check), **settings.read(node, where, check))
