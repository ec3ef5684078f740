"""Asks the API server what this account may do, so that nothing is tried that would be rejected."""

from __future__ import annotations

from typing import Any

import msgspec

from simgpu.kube import errors, views
from simgpu.kube.client import Client
from simgpu.kube.resources import Resource


class ReviewStatus(views.ApiView, frozen=True):
    """The answer of a review."""

    allowed: bool = False


class AccessReview(views.Object, frozen=True):
    """Whether the account that asks may do something."""

    status: ReviewStatus = msgspec.field(default_factory=ReviewStatus)


REVIEWS = Resource(
    "SelfSubjectAccessReview", "selfsubjectaccessreviews", AccessReview, group="authorization.k8s.io", namespaced=False
)


async def may(client: Client, verb: str, resource: Resource[Any], *, namespace: str = "") -> bool:
    """Return whether this account may do that. True where the server does not answer: then trying it will show."""
    wish = {"verb": verb, "group": resource.group, "resource": resource.plural, "namespace": namespace}
    try:
        review = await client.create(REVIEWS, {"metadata": {}, "spec": {"resourceAttributes": wish}})
    except errors.ApiError:
        return True
    return review.status.allowed
