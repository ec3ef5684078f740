"""Paths of objects of the API."""

from __future__ import annotations

import pytest

from simgpu.kube import resources


@pytest.mark.parametrize("name", ["a/b", "..", "a?watch=1", "a#b", "a%2fb"])
def test_a_name_cannot_change_the_rest_of_a_path(name: str) -> None:
    with pytest.raises(ValueError, match="not a valid part of the path of a ConfigMap"):
        resources.CONFIG_MAPS.path(name, namespace="ns")
    with pytest.raises(ValueError, match="not a valid part of the path of a ConfigMap"):
        resources.CONFIG_MAPS.path("a", namespace=name)
