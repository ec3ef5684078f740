"""Writes the reference pages that come from the code: `python -m docs.generate`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import msgspec

from deploy import schema
from deploy.dashboards import files as dashboards
from simgpu import vocabulary
from simgpu.catalog import models
from simgpu.cli import main
from simgpu.dashboard import openapi, queries
from simgpu.identities import identity

CLI_PAGE = Path(__file__).parent / "reference" / "cli.md"
MODELS_PAGE = Path(__file__).parent / "reference" / "gpu-models.md"
KEYS_PAGE = Path(__file__).parent / "reference" / "keys.md"
TOPOLOGY_PAGE = Path(__file__).parent / "reference" / "topology.md"
METRICS_PAGE = Path(__file__).parent / "reference" / "metrics.md"
API_PAGE = Path(__file__).parent / "reference" / "api.md"
OPENAPI_FILE = Path(__file__).parent / "reference" / "openapi.json"


_MODELS_HEAD = """\
# GPU models

<!-- Written by `make docs` from the catalog. -->

`simgpu catalog show KEY` has every figure of a model, and which of them are estimates. Anywhere a model can be named,
its product name or feature discovery's spelling of it means the same: `a100-pcie-40gb`, `NVIDIA A100-PCIE-40GB` and
`NVIDIA-A100-PCIE-40GB`.
"""

_KEYS_HEAD = """\
# Names and limits

<!-- Written by `make docs` from the vocabulary. -->

Labels, annotations, objects, environment variables and files, with who writes each: "you" are users of the cluster,
SimGPU is its controller or its agent. Names of other projects keep their meaning; names of our own start with
`simgpu.dev/` or `SIMGPU_`.
"""
_KEYS_NOTES = {
    "Labels of feature discovery": "They describe the node's GPUs; a fact that is not known of a card has no label.",
}


_TOPOLOGY_HEAD = """\
# Keys of a topology

<!-- Written by `make docs` from the schema of the chart's values. -->

They stand in the chart's values under `topology`, and in ConfigMap `topology` at the top. Pools may be written in three
forms, also mixed in one file: with `gpus`, with `gpuProduct`, or with `gpu`. `simgpu config check` finds mistakes, and
`simgpu config show` prints the GPUs of each pool. [The guide](../guides/fleet.md#the-topology) has examples.
"""

_METRICS_HEAD = """\
# Series of metrics

<!-- Written by `make docs` from the identities. -->

By exporter to mimic: `--identity NAME`, or `agent.identity` and `controller.identity` of the chart. In Kubernetes it is
`dcgm`. Labels without a value are left out unless the exporter prints them; some series appear only when they apply.
"""


_API_HEAD = """\
# The JSON API

<!-- Written by `make docs` from the table of paths. -->

Served beside the metrics where [the live page](../guides/dashboard.md) is. Read-only. Answers have an ETag, and 304 is
the answer to a matching `If-None-Match`. Lists have `total`, `offset`, `items`, and the address of the `next` part.
An invalid query gets 400 with `error` and the name of its `parameter`; an unknown node or GPU 404; 503 means that there
is nothing to show yet. [openapi.json](openapi.json) describes all answers, and is also at `/api/v1/openapi.json`. An
exporter and an agent also have [`/api/v1/devices` and `/api/v1/workloads`](../guides/exporter.md).
"""


def cli_reference() -> str:
    """Every command with its help, in the order of the alphabet."""
    root = click.Context(main.root, info_name="simgpu", terminal_width=100, **main.root.context_settings)
    parts = ["# Command reference", "<!-- Written by `make docs` from the commands themselves. -->", _help(root)]
    parts += [part for name, command in sorted(main.root.commands.items()) for part in _section(command, name, root)]
    return "\n\n".join(parts) + "\n"


def models_reference() -> str:
    """Every GPU model with what people choose it by."""
    rows = [
        "| key | product | architecture | memory | power | MIG | figures from |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for key, model in sorted(models.load().models.items()):
        profiles = ", ".join(profile.name for profile in model.mig if "+" not in profile.name) or "no"
        cells = (
            f"`{key}`", model.product, model.architecture, f"{model.memory_mib.total} MiB",
            f"{model.power_w.default:.0f} W", profiles, model.source,
        )  # fmt: skip
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join([_MODELS_HEAD, *rows, ""])


def keys_reference() -> str:
    """Every name and limit of the interface."""
    parts = [_KEYS_HEAD]
    for heading, terms in vocabulary.TERMS.items():
        read_by = "read by" if heading == "Environment variables" else "on"
        rows: list[tuple[str, ...]] = [(f"`{term.name}`", *term[1:]) for term in terms]
        table = _table(("name", read_by, "written by", "meaning", "values", "default"), rows)
        parts.append("\n\n".join(filter(None, (f"## {heading}", _KEYS_NOTES.get(heading), table))) + "\n")
    limits: list[tuple[str, ...]] = [(f"{limit.highest:,}", limit.what, limit.why) for limit in vocabulary.LIMITS]
    return "\n".join([*parts, "## Limits\n", _table(("at most", "of what", "why"), limits), ""])


def topology_reference() -> str:
    """Every key of a topology, from the schema of the chart's values."""
    parts = [_TOPOLOGY_HEAD]
    sections = {"The topology": schema.TOPOLOGY, "A pool": schema.POOL, "A node by name": schema.NODE}
    for heading, fields in sections.items():
        rows = [row for name, field in fields.items() for row in _fields(name, field)]
        parts.append(f"## {heading}\n\n{_table(('key', 'type', 'meaning'), rows)}\n")
    return "\n".join(parts)


def _fields(name: str, field: schema.Schema) -> Iterator[tuple[str, ...]]:
    """Yield a row for a key, and for the keys below it."""
    kind, about = field.get("type", ()), field.get("description", "")
    allowed = ", ".join(f"`{item}`" for item in field.get("enum", ()) if item)
    shown = allowed or " or ".join(item for item in kind if item != "null")
    if "maximum" in field:
        shown += f", {field['minimum']} to {field['maximum']:,}"
    yield (f"`{name}`", shown, about)
    inner = field.get("items", field)
    below = inner.get("additionalProperties")
    if name not in ("nodePools", "nodes") and not isinstance(below, dict):
        for key, item in inner.get("properties", {}).items():
            yield from _fields(f"{name}.{key}", item)


def metrics_reference() -> str:
    """Every series of every exporter that can be mimicked."""
    parts = [_METRICS_HEAD]
    for path in sorted(identity.DATA.glob("*.yaml")):
        found = identity.load(path.stem)
        labels = ", ".join(f"`{label}`" for label in found.labels if label != identity.FAMILY)
        rows: list[tuple[str, ...]] = [(f"`{family.name}`", family.type, family.help) for family in found.families]
        table = _table(("series", "type", "meaning"), rows)
        parts.append(f"## {path.stem}\n\n{found.about}. Labels: {labels}.\n\n{table}\n")
    return "\n".join(parts)


def api_reference() -> str:
    """Every path of the API, with its parameters."""
    parts = [_API_HEAD]
    for path in openapi.PATHS:
        rows: list[tuple[str, ...]] = [
            (f"`{item.name}`", item.about, _allowed(item), f"`{item.default}`" if item.default else "")
            for item in path.parameters
        ]
        answer = f" Answer: `{openapi.answer_name(path.answer)}`." if path.answer is not None else ""
        table = _table(("parameter", "meaning", "values", "default"), rows) + "\n" if rows else ""
        parts.append("\n\n".join(filter(None, (f"## GET /api/v1{path.path}", f"{path.about}{answer}", table))))
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"


def _allowed(parameter: queries.QueryParameter) -> str:
    if parameter.maximum:
        return f"{parameter.minimum} to {parameter.maximum:,}"
    return ", ".join(f"`{value}`" for value in parameter.values)


def openapi_document() -> str:
    """The OpenAPI document as a file."""
    return msgspec.json.format(msgspec.json.encode(openapi.document()), indent=1).decode() + "\n"


def _table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """A table without columns in which nothing stands."""
    filled = [place for place in range(len(heads)) if any(row[place] for row in rows)]
    lines = [heads, ("---",) * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line[place] for place in filled)} |" for line in lines)


def _section(command: click.Command, name: str, parent: click.Context) -> list[str]:
    """A command's help, and that of the commands below it."""
    context = click.Context(command, parent=parent, info_name=name, **command.context_settings)
    parts = [f"## {context.command_path}", _help(context)]
    for inner, below in sorted(command.commands.items()) if isinstance(command, click.Group) else ():
        parts += _section(below, inner, context)
    return parts


def _help(context: click.Context) -> str:
    return f"```text\n{context.get_help()}\n```"


if __name__ == "__main__":
    CLI_PAGE.write_text(cli_reference())
    MODELS_PAGE.write_text(models_reference())
    KEYS_PAGE.write_text(keys_reference())
    TOPOLOGY_PAGE.write_text(topology_reference())
    METRICS_PAGE.write_text(metrics_reference())
    API_PAGE.write_text(api_reference())
    OPENAPI_FILE.write_text(openapi_document())
    schema.FILE.write_text(schema.rendered())
    dashboards.write()
