"""Errors of requests to an API server.

KubeError
├── ConfigError                 a kubeconfig or credential is unusable; names the file and the field
├── ConnectError                no response: refused, reset, timed out, bad certificate
├── UnreadableAnswer            the response is not valid for the API
└── ApiError                    the server answered with a failure `Status`
    ├── BadRequest        400
    ├── Unauthorized      401
    ├── Forbidden         403
    ├── Starting          403   an API server that was just started rejected the request before processing it
    ├── NotFound          404
    ├── MethodNotAllowed  405
    ├── Conflict          409   the object was changed meanwhile, or is still being deleted
    │   └── AlreadyExists 409   reason AlreadyExists
    ├── Gone              410   the resource version is too old: list again
    ├── Unsupported       415
    ├── Invalid           422   validation failed; the message names the fields
    ├── TooManyRequests   429   carries `retry_after`
    └── ServerError       5xx   carries `retry_after`
"""

from __future__ import annotations

import msgspec

from simgpu import errors


class KubeError(errors.SimgpuError):
    """Base of all errors of requests to Kubernetes."""


class ConfigError(KubeError):
    """A kubeconfig or credential cannot be used."""

    exit_code = 2


class ConnectError(KubeError):
    """The server did not respond. `sent` is False if it cannot have received the request."""

    def __init__(self, message: str, *, sent: bool = True) -> None:
        super().__init__(message)
        self.sent = sent


class UnreadableAnswer(KubeError):
    """The response cannot be decoded."""


class ApiError(KubeError):
    """The server responded with a failure `Status`."""

    def __init__(self, code: int, reason: str, message: str, retry_after: float | None = None) -> None:
        super().__init__(message or reason or f"HTTP status {code}")
        self.code = code
        self.reason = reason
        self.message = message
        self.retry_after = retry_after


class BadRequest(ApiError):
    """400."""


class Unauthorized(ApiError):
    """401."""


class Forbidden(ApiError):
    """403."""


class Starting(ApiError):
    """403 of an API server that was just started: it rejected the request before processing it.

    Its admission plugins have not read their caches yet.
    """


class NotFound(ApiError):
    """404."""


class MethodNotAllowed(ApiError):
    """405."""


class Conflict(ApiError):
    """409."""


class AlreadyExists(Conflict):
    """409 with reason AlreadyExists."""


class Gone(ApiError):
    """410: also reason Expired."""


class Unsupported(ApiError):
    """415."""


class Invalid(ApiError):
    """422."""


class TooManyRequests(ApiError):
    """429."""


class ServerError(ApiError):
    """Any 5xx."""


TRANSIENT = (ConnectError, Starting, TooManyRequests, ServerError)  # errors that a retry may cure
_STARTING = "not yet ready to handle request"  # the end of its message


_BY_CODE: dict[int, type[ApiError]] = {
    400: BadRequest,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    405: MethodNotAllowed,
    409: Conflict,
    410: Gone,
    415: Unsupported,
    422: Invalid,
    429: TooManyRequests,
}


class _Details(msgspec.Struct):
    retryAfterSeconds: float | None = None  # noqa: N815 - a wire name


class Status(msgspec.Struct):
    """The part of a `metav1.Status` that we read."""

    code: int = 0
    reason: str = ""
    message: str = ""
    details: _Details | None = None


_decode_status = msgspec.json.Decoder(Status).decode

# msgspec lets Python's own errors through for text that is not UTF-8 or is nested too deeply.
DECODING = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def read_status(body: bytes | msgspec.Raw) -> Status:
    """Decode a `Status`; a body that is not one becomes its message."""
    try:
        return _decode_status(body)
    except DECODING:
        return Status(message=bytes(body)[:200].decode("utf-8", "replace").strip())


def from_status(status: Status, retry_after: float | None = None) -> ApiError:
    """Map a failure `Status` to its exception."""
    if status.details is not None and status.details.retryAfterSeconds is not None:
        retry_after = status.details.retryAfterSeconds
    return _class_of(status)(status.code, status.reason, status.message, retry_after)


def _class_of(status: Status) -> type[ApiError]:
    if status.reason == "AlreadyExists":
        return AlreadyExists
    if status.reason == "Expired":
        return Gone
    if status.code >= 500:
        return ServerError
    if status.code == 403 and status.message.endswith(_STARTING):
        return Starting
    return _BY_CODE.get(status.code, ApiError)


def from_response(code: int, body: bytes, retry_after: float | None = None) -> ApiError:
    """Map an HTTP response to its exception; the body need not be a `Status` (proxies answer in HTML)."""
    status = read_status(body)
    status.code = code
    return from_status(status, retry_after)
