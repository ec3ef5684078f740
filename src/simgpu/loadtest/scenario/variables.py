"""Variables of templates: override files, `CL2_` variables of the environment, and the number of nodes."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from simgpu import errors, yaml_text
from simgpu.loadtest.scenario.fields import ScenarioError

PREFIX = "CL2_"
NODES = "Nodes"
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_FLOAT = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE = frozenset({"0", "f", "F", "FALSE", "false", "False"})
_MAX_VALUE = 64 << 10  # characters


def gather(overrides: Sequence[Path], environ: Mapping[str, str], nodes: int | None) -> dict[str, Any]:
    """Return all variables; one that an override file and the environment set differently is an error."""
    found: dict[str, Any] = {}
    for path in overrides:
        found |= _override(path)
    given: dict[str, Any] = {NODES: nodes} if nodes is not None else {}
    for name, value in environ.items():
        if name.startswith(PREFIX):
            if len(value) > _MAX_VALUE:
                raise ScenarioError(f"{name}: longer than {_MAX_VALUE:,} characters")
            given[name] = typed(value)
    for name, value in given.items():
        if name in found and found[name] != value:
            raise ScenarioError(
                f"{name}: is {errors.shown(found[name])} in an override file and {errors.shown(value)} outside of it; "
                "remove one"
            )
        found[name] = value
    found.setdefault("ImageRegistry", "")
    return found


def typed(text: str) -> Any:
    """Return the value of an environment variable: an integer, float, boolean or string, whichever fits first."""
    if _INTEGER.fullmatch(text) and -(2**63) <= int(text) < 2**63:
        return int(text)
    if len(text) <= 64 and _FLOAT.fullmatch(text) and math.isfinite(float(text)):
        return float(text)
    if text in _TRUE | _FALSE:
        return text in _TRUE
    return text


def _override(path: Path) -> dict[str, Any]:
    try:
        document = yaml_text.parse_file(path)
    except OSError as error:
        raise ScenarioError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise ScenarioError(f"{path}: {error}") from None
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise ScenarioError(f"{path}: must be a mapping of variables")
    return {str(name): value for name, value in document.items()}
