"""The options of both programs, in the syntax of Go's flag package.

One dash or two, a value after a space or an equals sign. Parsing stops at the first word that is not an option.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SOCKET = "/tmp/fakedev-exporter"  # noqa: S108 - the original's

EXPORTER = {
    "address": (":9999", "address for HTTP metric queries, HOST:PORT"),
    "count": (1, "number of devices"),
    "devlist": ("devlist.json", "file with the labels of each device"),
    "devtype": ("devtype.json", "file with the device type"),
    "identity": ("identity.json", "file with the exporter identity"),
    "socket": (SOCKET, "socket that workloads connect to"),
    "wl-all": ("", "base workload file for all devices"),
    "wl-even": ("", "base workload file for devices 0, 2, 4, ..."),
    "wl-odd": ("", "base workload file for devices 1, 3, 5, ..."),
}
WORKLOAD = {
    "activity": ("98:1:0", "activities, <load>:<fluctuation>:<seconds>, separated by commas"),
    "devices": ("/dev/dri/card*", "glob for device files"),
    "devnames": ("", "device names, separated by commas, instead of the glob"),
    "index-regex": ("", "regexp whose first group, or match, in each file's name is the device's index"),
    "json": ("", "workload file; its fields override the options"),
    "limit": ("", "NAME=VALUE at which the workload ends, by the exporter's name of a metric or by ours; repeatable"),
    "max-index": (0, "INDEX in devnames is JOB_COMPLETION_INDEX modulo this"),
    "name": ("Workload", "workload name"),
    "repeat": (1, "how often the activities run, 0 for ever"),
    "socket": (SOCKET, "the exporter's socket"),
}

_REPEATABLE = ("limit",)  # values are joined by commas

Known = Mapping[str, tuple[Any, str]]  # default and description by option name
Options = dict[str, Any]


class FlagError(Exception):
    """The options are invalid; without a message, help was requested."""


def parse(arguments: list[str], known: Known) -> Options:
    """Return the value of every known option: the given one, or its default."""
    found = {name: default for name, (default, _) in known.items()}
    rest = list(arguments)
    while rest and rest[0].startswith("-") and rest[0] not in ("-", "--"):
        word = rest.pop(0)
        name, equals, value = word.lstrip("-").partition("=")
        if len(word) - len(word.lstrip("-")) > 2 or not name:
            raise FlagError(f"bad flag syntax: {word}")
        if name in ("h", "help"):
            raise FlagError
        if name not in known:
            raise FlagError(f"flag provided but not defined: -{name}")
        if not equals:
            if not rest:
                raise FlagError(f"flag needs an argument: -{name}")
            value = rest.pop(0)
        if name in _REPEATABLE and found[name]:
            value = f"{found[name]},{value}"
        found[name] = _typed(name, value, known[name][0])
    return found


def _typed(name: str, value: str, default: Any) -> Any:
    if not isinstance(default, int):
        return value
    try:
        number = int(value, 0)
    except ValueError:
        number = None
    if number is None or (name == "repeat" and number < 0):
        raise FlagError(f'invalid value "{value}" for flag -{name}: parse error')
    return number


def usage(program: str, known: Known) -> str:
    """Return the help text of a program."""
    lines = (f"  -{name}\n    \t{about} (default {default!r})" for name, (default, about) in known.items())
    return "\n".join([f"Usage of {program}:", *lines])
