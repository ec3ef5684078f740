"""The mapping from answers to exceptions is total and keeps what the server said."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simgpu.kube import errors


@pytest.mark.parametrize(
    ("code", "reason", "kind"),
    [
        (400, "BadRequest", errors.BadRequest),
        (401, "Unauthorized", errors.Unauthorized),
        (403, "Forbidden", errors.Forbidden),
        (404, "NotFound", errors.NotFound),
        (405, "MethodNotAllowed", errors.MethodNotAllowed),
        (409, "Conflict", errors.Conflict),
        (409, "AlreadyExists", errors.AlreadyExists),
        (410, "Gone", errors.Gone),
        (410, "Expired", errors.Gone),
        (415, "UnsupportedMediaType", errors.Unsupported),
        (422, "Invalid", errors.Invalid),
        (429, "TooManyRequests", errors.TooManyRequests),
        (500, "InternalError", errors.ServerError),
        (504, "Timeout", errors.ServerError),
        (418, "", errors.ApiError),
    ],
)
def test_each_status_has_its_exception(code: int, reason: str, kind: type[errors.ApiError]) -> None:
    error = errors.from_status(errors.Status(code=code, reason=reason, message="why"))
    assert type(error) is kind
    assert (error.code, error.reason, str(error)) == (code, reason, "why")


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ('nodes "node-1" is forbidden: not yet ready to handle request', errors.Starting),
        ('nodes "not yet ready to handle request" is forbidden: no', errors.Forbidden),
    ],
)
def test_a_server_that_was_just_started_forbids_nothing(message: str, kind: type[errors.ApiError]) -> None:
    error = errors.from_status(errors.Status(code=403, reason="Forbidden", message=message))
    assert type(error) is kind
    assert isinstance(error, errors.TRANSIENT) == (kind is errors.Starting)


def test_the_servers_wish_to_wait_is_kept() -> None:
    body = b'{"kind":"Status","code":429,"details":{"retryAfterSeconds":3}}'
    assert errors.from_response(429, body).retry_after == 3
    assert errors.from_response(503, b"", 5.0).retry_after == 5.0


@given(st.integers(400, 599), st.binary(max_size=300))
def test_any_failing_answer_becomes_an_api_error_with_a_message(code: int, body: bytes) -> None:
    error = errors.from_response(code, body)
    assert error.code == code
    assert str(error)
