"""Maps errors to the status codes of each transport, and to the status in the metrics."""

from __future__ import annotations

from fovea_preprocess.errors import FoveaError

# Maps each error code to the HTTP status in /v1 and to a name in Triton's
# `TRITONSERVER_Error_Code`. An error that is not in this dict is an internal error.
_STATUSES = {
    "invalid_request": (400, "INVALID_ARG"),
    "invalid_image": (400, "INVALID_ARG"),
    "image_too_large": (413, "INVALID_ARG"),
    "invalid_option": (422, "INVALID_ARG"),
    "method_not_allowed": (405, "INTERNAL"),
    "body_too_large": (413, "INVALID_ARG"),
    "answer_too_large": (413, "TOO_LARGE"),
    # The status is not 408, because Chromium repeats a request without end after a 408.
    "body_timeout": (400, "INVALID_ARG"),
    "fetch_refused": (400, "INVALID_ARG"),
    "upgrade_required": (426, "INVALID_ARG"),
    # RESTRICTED is not a code of Triton. Triton rejects such requests before it creates an error.
    "restricted": (403, "RESTRICTED"),
    "foreign_request": (403, "RESTRICTED"),
    "unauthenticated": (401, "UNAUTHENTICATED"),
    "forbidden": (403, "FORBIDDEN"),
    "already_exists": (409, "ALREADY_EXISTS"),
    "out_of_order": (409, "OUT_OF_ORDER"),
    "not_found": (404, "NOT_FOUND"),
    "unavailable": (503, "UNAVAILABLE"),
    "model_not_ready": (503, "UNAVAILABLE"),
    "no_memory": (503, "UNAVAILABLE"),
    "keys_pending": (503, "UNAVAILABLE"),
    "queue_full": (429, "UNAVAILABLE"),
    "rate_limited": (429, "RATE_LIMITED"),
    "deadline_exceeded": (504, "UNAVAILABLE"),
    "shutting_down": (503, "UNAVAILABLE"),
    "unsupported": (501, "UNSUPPORTED"),
}
_INTERNAL = (500, "INTERNAL")

# Maps each of Triton's names to the HTTP status in /v2 and to the name of the `grpc.StatusCode`.
# Sources: http_server.cc and grpc_utils.cc of Triton.
_TRITON = {
    "INVALID_ARG": (400, "INVALID_ARGUMENT"),
    "ALREADY_EXISTS": (400, "ALREADY_EXISTS"),
    "RESTRICTED": (403, "UNAVAILABLE"),
    "NOT_FOUND": (404, "NOT_FOUND"),
    "INTERNAL": (500, "INTERNAL"),
    "UNSUPPORTED": (501, "UNIMPLEMENTED"),
    "UNAVAILABLE": (503, "UNAVAILABLE"),
    # The names from here on are Fovea's. Triton has neither these limits nor streams of frames nor
    # API keys.
    "TOO_LARGE": (413, "RESOURCE_EXHAUSTED"),
    "UNAUTHENTICATED": (401, "UNAUTHENTICATED"),
    "FORBIDDEN": (403, "PERMISSION_DENIED"),
    "OUT_OF_ORDER": (409, "FAILED_PRECONDITION"),
    "RATE_LIMITED": (429, "RESOURCE_EXHAUSTED"),
}

# Maps error codes to the label `status` in the metrics, for HTTP and for gRPC. These errors share
# the sent status with errors of another cause, and alerts must tell the causes apart.
_METRIC_STATUSES: dict[str, tuple[int | str, str]] = {
    # Triton returns an internal error, but the client sent the malformed text.
    "malformed_json": (400, "INVALID_ARGUMENT"),
    # These are not rejections by a full queue or a model that is not ready.
    "rate_limited": ("rate_limited", "rate_limited"),
    "deadline_exceeded": (504, "DEADLINE_EXCEEDED"),
    "restricted": (403, "PERMISSION_DENIED"),
}


def http_status(error: FoveaError) -> int:
    """Return the HTTP status of an error for the routes of /v1."""
    return _STATUSES.get(error.code, _INTERNAL)[0]


def v2_http_status(error: FoveaError) -> int:
    """Return the HTTP status of an error for the routes of /v2, as Triton's clients expect it."""
    return _TRITON[_STATUSES.get(error.code, _INTERNAL)[1]][0]


def grpc_status(error: FoveaError) -> str:
    """Return the name of the `grpc.StatusCode` of an error."""
    return _TRITON[_STATUSES.get(error.code, _INTERNAL)[1]][1]


def metric_status(sent: int | str, error: FoveaError | None) -> int | str:
    """Return the label `status` of a request in the metrics.

    Args:
        sent: HTTP status code, or name of the gRPC status.
        error: the error in the response; None if there is no error.
    """
    labels = None if error is None else _METRIC_STATUSES.get(error.code)
    return sent if labels is None else labels[isinstance(sent, str)]
