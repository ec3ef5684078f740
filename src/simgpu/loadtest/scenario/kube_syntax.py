"""Fields whose syntax Kubernetes defines: label and field selectors, and names of extended resources.

The API server would reject them in the middle of a run; here they are mistakes of the scenario.
"""

from __future__ import annotations

import re
from typing import Any

from simgpu import errors
from simgpu.loadtest.scenario import fields

_MAX_NAME, _MAX_PREFIX = 63, 253
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
_LABEL = r"[a-z0-9]([a-z0-9-]*[a-z0-9])?"
_SUBDOMAIN = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_WORD = r"[^\s(),=!<>]+"
_REQUIREMENT = re.compile(
    rf"""\s*(?:!\s*(?P<absent>{_WORD})
        |(?P<key>{_WORD})
         (?:\s*(?P<operator>==|=|!=|>|<)\s*(?P<value>{_WORD})?
           |\s+(?:in|notin)\s*\((?P<values>[^()=!<>]*)\))?)\s*""",
    re.VERBOSE,
)


def label_selector(value: Any) -> str:
    """Accept a label selector: `a = b, c in (d, e), !f`."""
    text = fields.text(value)
    place = 0 if text.strip() else len(text) + 1
    while place <= len(text):
        found = _REQUIREMENT.match(text, place)
        if found is None or text[found.end() : found.end() + 1] not in {"", ","}:
            raise ValueError("must be a label selector such as 'a = b, c in (d, e), !f'")
        _check_requirement(found)
        place = found.end() + 1
    return text


def _check_requirement(found: re.Match[str]) -> None:
    key = found["absent"] or found["key"]
    if not is_qualified(key):
        raise ValueError(f"{errors.shown(key)} is not the key of a label")
    if found["operator"] in {">", "<"} and not re.fullmatch("-?[0-9]{1,18}", found["value"] or ""):
        raise ValueError(f"{found['operator']} needs a whole number")
    listed = found["values"].split(",") if found["values"] is not None else [found["value"] or ""]
    for item in (part.strip() for part in listed):
        if item and not (len(item) <= _MAX_NAME and _NAME.fullmatch(item)):
            raise ValueError(f"{errors.shown(item)} is not the value of a label")


def field_selector(value: Any) -> str:
    """Accept a field selector: `metadata.name=a,status.phase!=Failed`; which fields there are, the server knows."""
    text = fields.text(value)
    for term in text.replace("\\\\", "").replace("\\,", "").split(","):  # without what is escaped in values
        if term and not re.fullmatch(r"[^=!\s]+(==|=|!=).*", term, re.DOTALL):
            raise ValueError("must be a field selector such as 'metadata.name=a,status.phase!=Failed'")
    return text


def extended_resource(value: Any) -> str:
    """Accept the name of an extended resource, such as example.com/gpu."""
    text = fields.text(value)
    native = "/" not in text or "kubernetes.io/" in text
    if native or not is_qualified(text) or text.startswith("requests."):
        raise ValueError("must be the name of an extended resource, such as example.com/gpu")
    return text


def is_qualified(text: str) -> bool:
    """Return whether a text is a name as of labels and resources: letters, digits, `-_.`, after an optional domain."""
    prefix, slash, name = text.rpartition("/")
    if slash and not (len(prefix) <= _MAX_PREFIX and _SUBDOMAIN.fullmatch(prefix)):
        return False
    return len(name) <= _MAX_NAME and _NAME.fullmatch(name) is not None
