"""Parameters of requests: one table for each path, which checks queries and describes them in OpenAPI."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from simgpu.errors import InputError
from simgpu.vocabulary import MAX_API_ITEMS, MAX_API_TEXT, MAX_FLEET_GPUS


class QueryParameter(msgspec.Struct, frozen=True):
    """A parameter: text, which may have a `pattern`, one of some `values`, or a whole number up to `maximum`."""

    name: str
    about: str
    default: str = ""
    values: tuple[str, ...] = ()
    minimum: int = 0
    maximum: int = 0
    pattern: str = ""

    def check(self, text: str) -> None:
        """Raise `InputError` for a value that is not allowed."""
        if self.maximum and not (text.isascii() and text.isdecimal() and len(text) <= 9):
            raise InputError(self.name, f"must be a whole number from {self.minimum} to {self.maximum}")
        if self.maximum and not self.minimum <= int(text) <= self.maximum:
            raise InputError(self.name, f"{int(text)}: must be from {self.minimum} to {self.maximum}")
        if self.values and text not in self.values:
            raise InputError(self.name, f"must be one of {', '.join(self.values)}")
        if len(text) > MAX_API_TEXT:
            raise InputError(self.name, f"has {len(text)} characters; at most {MAX_API_TEXT}")
        if self.pattern and not re.fullmatch(self.pattern, text):
            raise InputError(self.name, f"must match {self.pattern}")

    def schema(self) -> dict[str, Any]:
        """Return the JSON schema of its values."""
        if self.maximum:
            return {
                "type": "integer", "minimum": self.minimum, "maximum": self.maximum, "default": int(self.default or 0),
            }  # fmt: skip
        found: dict[str, Any] = {"type": "string", "default": self.default}
        if self.pattern:
            found["pattern"] = f"^({self.pattern})?$"
        return {**found, "enum": list(self.values)} if self.values else {**found, "maxLength": MAX_API_TEXT}


COLUMNS = ("utilization", "power", "temperature", "memory", "health", "owner")
HEALTH = ("healthy", "throttled", "unhealthy", "lost")
VIEWS = ("fleet", "node", "gpu", "pods", "totals")
PHASES = ("Pending", "Running")

POOL = QueryParameter("pool", "Only GPUs of nodes in this pool.")
MODEL = QueryParameter("model", "Only GPUs of this model, by product name.")
NODE = QueryParameter("node", "Only those of this node.")
NAMESPACE = QueryParameter("namespace", "Only those of pods in this namespace.")
Q = QueryParameter("q", "Only those where a node's name, a pod, a namespace or a GPU's id contains this text.")
STATE = QueryParameter("health", "Only GPUs in this state.", values=HEALTH)
CONTAINER = QueryParameter("container", "Name of the container; by default the first one that has GPUs.")
PHASE = QueryParameter("phase", "Only pods in this phase.", values=PHASES)
LIMIT = QueryParameter("limit", "Items in the answer.", "100", minimum=1, maximum=MAX_API_ITEMS)
OFFSET = QueryParameter("offset", "Items to skip.", "0", maximum=MAX_FLEET_GPUS)
VIEW = QueryParameter("view", "What is shown, and so sent.", "fleet", values=VIEWS)
SHOW = QueryParameter("show", "Of view `fleet`: the column that cells are coloured by.", "utilization", values=COLUMNS)
SHOWN_NODE = QueryParameter("node", "Of views `node` and `gpu`: the node's name.")
INDEX = QueryParameter("index", "Of view `gpu`: the GPU's index on its node.", "0", maximum=MAX_FLEET_GPUS)
BLOCKS = QueryParameter(
    "blocks", "Of view `fleet`: blocks of nodes whose changes are sent, as bits of a hexadecimal number, the lowest of "
    "block 0; all if it is empty. The layout has the block of each node.", pattern="[0-9a-f]{1,64}",
)  # fmt: skip
LAYOUT = QueryParameter(
    "layout", "Of view `fleet`: the tag of the layout that the client has: if it is still the same, neither it nor "
    "curves are sent, and cells only of `blocks`.", pattern="[0-9a-f]{1,32}",
)  # fmt: skip

LISTS = (LIMIT, OFFSET)


def read(query: Mapping[str, str], known: Sequence[QueryParameter]) -> dict[str, str]:
    """Return the value of every parameter, or its default; `InputError` for an unknown or an invalid one."""
    found = {parameter.name: parameter for parameter in known}
    for name, text in query.items():
        if name not in found:
            there = f"there are: {', '.join(found)}" if found else "there are none here"
            raise InputError(name[:MAX_API_TEXT], f"unknown parameter; {there}")
        if text or found[name].maximum:
            found[name].check(text)
    return {name: query.get(name) or parameter.default for name, parameter in found.items()}
