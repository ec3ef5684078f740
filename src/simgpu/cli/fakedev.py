"""`fakedev-exporter` and `fakedev-workload`: the originals' options and files.

Their options are in Go's form: one dash or two, a value after a space or an equals sign, and nothing is read after
the first word that is no option.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import click

from simgpu import errors
from simgpu.cli import output

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
    "json": ("", "workload file; its fields override the options"),
    "max-index": (0, "INDEX in devnames is JOB_COMPLETION_INDEX modulo this"),
    "name": ("Workload", "workload name"),
    "repeat": (1, "how often the activities run, 0 for ever"),
    "socket": (SOCKET, "the exporter's socket"),
}

Options = dict[str, Any]


class Usage(Exception):
    """The options are off, or help was asked for."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def parse(arguments: list[str], known: Mapping[str, tuple[Any, str]]) -> Options:
    """Options as Go's flag package reads them."""
    found = {name: default for name, (default, _) in known.items()}
    rest = list(arguments)
    while rest and rest[0].startswith("-") and rest[0] not in ("-", "--"):
        word = rest.pop(0)
        name, equals, value = word.lstrip("-").partition("=")
        if len(word) - len(word.lstrip("-")) > 2 or not name:
            raise Usage(f"bad flag syntax: {word}", 2)
        if name in ("h", "help"):
            raise Usage("", 0)
        if name not in known:
            raise Usage(f"flag provided but not defined: -{name}", 2)
        if not equals:
            if not rest:
                raise Usage(f"flag needs an argument: -{name}", 2)
            value = rest.pop(0)
        found[name] = _typed(name, value, known[name][0])
    return found


def _typed(name: str, value: str, default: Any) -> Any:
    if not isinstance(default, int):
        return value
    try:
        number = int(value, 0)
    except ValueError:
        raise Usage(f'invalid value "{value}" for flag -{name}: parse error', 2) from None
    if name == "repeat" and number < 0:
        raise Usage(f'invalid value "{value}" for flag -{name}: parse error', 2)
    return number


def _main(program: str, known: Mapping[str, tuple[Any, str]], run: Any) -> NoReturn:
    try:
        options = parse(sys.argv[1:], known)
    except Usage as usage:
        lines = [str(usage)] if str(usage) else []
        lines.append(f"Usage of {program}:")
        lines += (f"  -{name}\n    \t{about} (default {default!r})" for name, (default, about) in known.items())
        click.echo("\n".join(lines), err=True)
        sys.exit(usage.code)
    try:
        sys.exit(run(options))
    except errors.SimgpuError as error:
        click.echo(f"FATAL: {error}", err=True)
        sys.exit(1)
    except OSError as error:
        click.echo(f"FATAL: {errors.explain(error)}", err=True)
        sys.exit(1)


def exporter() -> NoReturn:
    """fakedev-exporter."""
    _main("fakedev-exporter", EXPORTER, run_exporter)


def workload() -> NoReturn:
    """fakedev-workload."""
    _main("fakedev-workload", WORKLOAD, run_workload)


def run_exporter(options: Options) -> int:
    """Serve until a signal comes."""
    from simgpu.app import exporting
    from simgpu.catalog import models
    from simgpu.identities import identity as identities
    from simgpu.topology import fakedev
    from simgpu.web import server

    identity = identities.from_json(fakedev.read(Path(options["identity"])), where=options["identity"], compatible=True)
    kind = fakedev.device_type(Path(options["devtype"]))
    devices = fakedev.devices(Path(options["devlist"]), kind, options["count"], models.load().models["dg1"])
    settings = exporting.FakedevSettings(
        devices=devices,
        limits={name: (limits.min, limits.max) for name, limits in kind.metric_limits.items()},
        identity=identities.without(identity, kind.metric_limits),
        listen=server.parse_address(options["address"], field="address"),
        socket=Path(options["socket"]),
        base_workloads=tuple(_bases(options, len(devices))),
    )
    try:
        output.run(
            exporting.run_fakedev(
                settings,
                ready=lambda address: click.echo(f"listening on {address}", err=True),
                warn=lambda message: click.echo(f"WARN: {message}", err=True),
            )
        )
    except click.Abort:
        click.echo("terminated", err=True)
    return 0


def _bases(options: Options, count: int) -> list[tuple[dict[str, Any], tuple[int, ...]]]:
    from simgpu.topology import fakedev
    from simgpu.workloads import documents

    found = []
    for name, first, step in (("wl-even", 0, 2), ("wl-odd", 1, 2), ("wl-all", 0, 1)):
        if options[name]:
            document = fakedev.read(Path(options[name]))
            try:
                documents.read(document)
            except errors.InputError as error:
                click.echo(f"WARN: {options[name]}: {error}", err=True)
                continue
            found.append((document, tuple(range(first, count, step))))
    return found


def run_workload(options: Options) -> int:
    """Connect, wait, and end as the exporter says."""
    from simgpu.topology import fakedev
    from simgpu.workloads import client

    if options["devnames"]:
        devices = client.devices_by_name(options["devnames"], options["max-index"], os.environ)
    else:
        devices = client.devices_by_glob(options["devices"], None)
    document: dict[str, Any] = {
        "Name": options["name"],
        "Repeat": options["repeat"],
        "Profile": client.activities(options["activity"]),
        "Devices": devices,
        "Limits": None,
    }
    if options["json"]:
        given = fakedev.read(Path(options["json"]))
        if not isinstance(given, dict):
            raise errors.SimgpuError(f"{options['json']}: must hold an object")
        known = {name.lower(): name for name in document}
        document |= {
            known.get(str(name).lower(), str(name)): value for name, value in given.items() if value is not None
        }
    if not document["Name"]:
        raise errors.SimgpuError("the workload has no name")
    code, message = output.run(client.run({**document, "Protocol": 2}, Path(options["socket"])))
    click.echo(f"{code} {message}".strip(), err=True)
    return code
