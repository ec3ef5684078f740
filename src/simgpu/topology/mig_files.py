"""Reads layouts of MIG instances: NVIDIA's mig-parted configuration files as they are, and a pool's `mig` section."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from simgpu import errors, yaml_text
from simgpu.topology.checking import whole
from simgpu.topology.mig_layouts import Layout, LayoutEntry
from simgpu.vocabulary import MAX_GPUS, MAX_MIG_CONFIGS, MAX_NAME, MIG_STRATEGIES

_VERSION = "v1"
_ENTRY = ("devices", "device-filter", "mig-enabled", "mig-devices")
_MAX_ENTRIES = 64  # of a layout
_MAX_INSTANCES = 8  # of a card
_MAX_IDS = 256  # of a device filter


class MigSettings(msgspec.Struct, frozen=True):
    """A pool's `mig`: the strategy, empty for the topology's, and the layout, by name or as it is."""

    strategy: str = ""
    config: str = ""
    layout: Layout = ()


NONE = MigSettings()


def parse_settings(document: Any, *, field: str) -> MigSettings:
    """Return a pool's `mig` section; raises `InputError` with the field that is wrong."""
    if document is None:
        return NONE
    _check_keys(document, ("strategy", "config"), field)
    strategy, config = document.get("strategy") or None, document.get("config")
    if strategy is not None:
        check_strategy(strategy, field=f"{field}.strategy")
    if config is None or isinstance(config, str):
        name = parse_name(config, field=f"{field}.config") if config else ""
        return MigSettings(strategy or "", config=name)
    return MigSettings(strategy or "", layout=parse_layout(config, field=f"{field}.config"))


def check_strategy(strategy: Any, *, field: str) -> None:
    """Raise `InputError` for an unknown strategy."""
    if strategy not in MIG_STRATEGIES:
        raise errors.InputError(field, f"{errors.shown(strategy)}: must be one of {', '.join(MIG_STRATEGIES)}")


def parse_name(name: Any, *, field: str) -> str:
    """Return the name of a layout."""
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME:
        raise errors.InputError(field, f"{errors.shown(name)}: must be the name of a layout, such as all-balanced")
    return name


def is_file_of_layouts(text: str) -> bool:
    """Return whether a text is a file of mig-parted, and not a topology, which may have layouts too."""
    try:
        document = yaml_text.parse(text)
    except ValueError:
        return False
    return isinstance(document, dict) and "mig-configs" in document and {*document} <= {"version", "mig-configs"}


def read(text: str, *, field: str) -> dict[str, Layout]:
    """Return the layouts in the text of a mig-parted file, by name."""
    try:
        document = yaml_text.parse(text)
    except ValueError as error:
        raise errors.InputError(field, str(error)) from None
    _check_keys(document, ("version", "mig-configs"), field)
    version = document.get("version", _VERSION)
    if version != _VERSION:
        raise errors.InputError(f"{field}.version", f"{errors.shown(version)}: must be {_VERSION}")
    return parse_configs(document.get("mig-configs"), field=f"{field}.mig-configs")


def parse_configs(document: Any, *, field: str) -> dict[str, Layout]:
    """Return the layouts of a `mig-configs` section, by name."""
    if not isinstance(document, dict) or len(document) > MAX_MIG_CONFIGS:
        raise errors.InputError(field, f"must be a mapping of at most {MAX_MIG_CONFIGS} layouts by name")
    return {
        parse_name(name, field=field): parse_layout(layout, field=f"{field}.{errors.clipped(str(name), MAX_NAME)}")
        for name, layout in document.items()
    }


def parse_layout(document: Any, *, field: str) -> Layout:
    """Return a layout: a list of entries as in mig-parted's files, or instances of all cards as `{PROFILE: COUNT}`."""
    if isinstance(document, dict):
        return (LayoutEntry(enabled=True, instances=_instances(document, field), field=field, plain=True),)
    if not isinstance(document, list) or not 0 < len(document) <= _MAX_ENTRIES:
        raise errors.InputError(
            field, f"must be a mapping of profiles to counts, or a list of 1 to {_MAX_ENTRIES} entries as in mig-parted"
        )
    return tuple(_entry(item, f"{field}[{number}]") for number, item in enumerate(document))


def _entry(item: Any, field: str) -> LayoutEntry:
    _check_keys(item, _ENTRY, field)
    enabled = item.get("mig-enabled")
    if not isinstance(enabled, bool):
        raise errors.InputError(f"{field}.mig-enabled", f"{errors.shown(enabled)}: must be true or false")
    instances = _instances(item.get("mig-devices") or {}, f"{field}.mig-devices")
    if instances and not enabled:
        raise errors.InputError(f"{field}.mig-devices", "mig-enabled is false: a card without MIG has no instances")
    return LayoutEntry(
        enabled=enabled,
        instances=instances,
        devices=_devices(item.get("devices"), f"{field}.devices"),
        pci_ids=_filter(item.get("device-filter"), f"{field}.device-filter"),
        field=field,
    )


def _devices(value: Any, field: str) -> tuple[int, ...] | None:
    if value == "all":
        return None
    if not isinstance(value, list) or not all(whole(index, MAX_GPUS - 1) for index in value):
        raise errors.InputError(field, f"{errors.shown(value)}: must be all, or a list of indices of cards")
    return tuple(dict.fromkeys(value))


def _filter(value: Any, field: str) -> tuple[str, ...]:
    listed = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(listed, list) or len(listed) > _MAX_IDS or not all(map(_is_pci_id, listed)):
        raise errors.InputError(field, f"{errors.shown(value)}: must be PCI ids such as 0x233510DE")
    return tuple(item.lower() for item in listed)


def _is_pci_id(text: Any) -> bool:
    if not isinstance(text, str) or len(text) != len("0x233510DE"):
        return False
    return text[:2].lower() == "0x" and all(letter in "0123456789abcdef" for letter in text[2:].lower())


def _instances(value: Any, field: str) -> tuple[tuple[str, int | None], ...]:
    """Return instances by profile, from counts, or from a list with their positions as Run:ai writes it."""
    found: list[tuple[str, int | None]] = []
    if isinstance(value, dict):
        for name, count in value.items():
            if not isinstance(name, str) or len(name) > MAX_NAME or not whole(count, _MAX_INSTANCES):
                problem = f"{errors.shown(name)}: {errors.shown(count)}: must be a profile and a count"
                raise errors.InputError(field, f"{problem} from 0 to {_MAX_INSTANCES}")
            found += [(name, None)] * count
    elif isinstance(value, list):
        found += (_positioned(item, f"{field}[{number}]") for number, item in enumerate(value[: _MAX_INSTANCES + 1]))
    else:
        raise errors.InputError(field, f"{errors.shown(value)}: must be a mapping of profiles to counts")
    if len(found) > _MAX_INSTANCES:
        raise errors.InputError(field, f"a card has at most {_MAX_INSTANCES} instances")
    return tuple(found)


def _positioned(item: Any, field: str) -> tuple[str, int | None]:
    _check_keys(item, ("name", "position", "size"), field)
    name, position = item.get("name"), item.get("position")
    if not isinstance(name, str) or len(name) > MAX_NAME or not (position is None or whole(position, 7)):
        raise errors.InputError(field, "must have a name, and a position from 0 to 7")
    return name, position


def _check_keys(document: Any, allowed: Sequence[str], field: str) -> None:
    if not isinstance(document, dict):
        raise errors.InputError(field, f"must be a mapping with {', '.join(allowed)}")
    for key in document:
        if key not in allowed:
            raise errors.InputError(field, f"{errors.shown(key)}: no such key; there are: {', '.join(allowed)}")
