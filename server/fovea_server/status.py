"""The status that each transport answers an error with."""

from __future__ import annotations

from fovea_preprocess.errors import FoveaError

_HTTP = {
    "invalid_request": 400,
    "invalid_image": 400,
    "image_too_large": 413,
    "invalid_option": 422,
    "method_not_allowed": 405,
    "body_too_large": 413,
    "body_timeout": 408,
    "fetch_refused": 400,
    "restricted": 403,
    "not_found": 404,
    "unavailable": 503,
    "model_not_ready": 503,
    "queue_full": 429,
    "deadline_exceeded": 504,
    "shutting_down": 503,
}

# Triton's own names; its `TRITONSERVER_Error_Code`.
_TRITON = {
    "invalid_request": "INVALID_ARG",
    "invalid_image": "INVALID_ARG",
    "image_too_large": "INVALID_ARG",
    "invalid_option": "INVALID_ARG",
    "body_too_large": "INVALID_ARG",
    "body_timeout": "INVALID_ARG",
    "fetch_refused": "INVALID_ARG",
    "already_exists": "ALREADY_EXISTS",
    "not_found": "NOT_FOUND",
    "unavailable": "UNAVAILABLE",
    "model_not_ready": "UNAVAILABLE",
    "queue_full": "UNAVAILABLE",
    "deadline_exceeded": "UNAVAILABLE",
    "shutting_down": "UNAVAILABLE",
    "unsupported": "UNSUPPORTED",
    # Triton has no code for this: it answers before there is an error.
    "restricted": "RESTRICTED",
}

# Source: http_server.cc and grpc_utils.cc of Triton.
_V2_HTTP = {
    "INVALID_ARG": 400,
    "ALREADY_EXISTS": 400,
    "RESTRICTED": 403,
    "NOT_FOUND": 404,
    "INTERNAL": 500,
    "UNSUPPORTED": 501,
    "UNAVAILABLE": 503,
}
_GRPC = {
    "INVALID_ARG": "INVALID_ARGUMENT",
    "UNSUPPORTED": "UNIMPLEMENTED",
    "RESTRICTED": "UNAVAILABLE",
}


def http_status(error: FoveaError) -> int:
    """Look up the status of /v1; unlisted errors are the server's fault."""
    return _HTTP.get(error.code, 500)


def v2_http_status(error: FoveaError) -> int:
    """Look up the status of /v2, as Triton's clients expect it."""
    return _V2_HTTP[_triton_name(error)]


def grpc_status(error: FoveaError) -> str:
    """Look up the name of the `grpc.StatusCode`."""
    name = _triton_name(error)
    return _GRPC.get(name, name)


def _triton_name(error: FoveaError) -> str:
    return _TRITON.get(error.code, "INTERNAL")
