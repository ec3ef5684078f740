"""YAML that people write: read safely, and no key twice."""

from __future__ import annotations

from typing import Any

import yaml

_Safe: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MERGE = "tag:yaml.org,2002:merge"


class _Loader(_Safe):  # type: ignore[misc]  # which of the two it is depends on how PyYAML was built
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> Any:  # noqa: FBT001, FBT002 - as PyYAML calls it
        seen = set[str]()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != _MERGE:
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(None, None, f"{key.value} stands twice", key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def parse(text: str) -> Any:
    """A document; what is no YAML is a `ValueError` that says so in one line."""
    try:
        return yaml.load(text, Loader=_Loader)  # noqa: S506 - a safe loader
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # PyYAML lets impossible dates through as they are
        raise ValueError(" ".join(str(error).split())) from None
