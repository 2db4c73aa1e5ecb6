"""The error tree of the whole project.

Every error carries a stable `code` word, for programs, and a message that says what to do next,
for people. HTTP and gRPC status codes are decided at the edge of the server, nowhere else.
"""

from __future__ import annotations

from typing import ClassVar, Self


class FoveaError(Exception):
    """Base of every error that Fovea raises on purpose."""

    code: ClassVar[str] = "error"

    def with_text(self, text: str) -> Self:
        """Return the same error in other words: a new one, because callers may share this one."""
        return type(self)(text)


class InvalidRequest(FoveaError):
    """The request or command cannot be understood."""

    code = "invalid_request"


class InvalidImage(InvalidRequest):
    """The bytes are not a whole image in a known format."""

    code = "invalid_image"


class ImageTooLarge(InvalidImage):
    """The image has more bytes or pixels than the limit; found before it is decoded."""

    code = "image_too_large"


class InvalidOption(InvalidRequest):
    """An option is unknown or out of its range; the message names the range."""

    code = "invalid_option"


class MethodNotAllowed(InvalidRequest):
    """The address does not take this method of HTTP; the message names those that it takes."""

    code = "method_not_allowed"


class BodyTooLarge(InvalidRequest):
    """The request body is over the limit; found while reading, not after."""

    code = "body_too_large"


class BodyTimeout(InvalidRequest):
    """The request body did not arrive in time."""

    code = "body_timeout"


class FetchRefused(InvalidRequest):
    """An image URL that may not, or could not, be fetched."""

    code = "fetch_refused"


class MalformedJson(InvalidRequest):
    """JSON of the v2 protocol that cannot be read. Triton calls this an error of its own (500)."""

    code = "malformed_json"


class AlreadyExists(InvalidRequest):
    """A name that is taken."""

    code = "already_exists"


class Unsupported(FoveaError):
    """A part of the protocol that is not served."""

    code = "unsupported"


class Restricted(FoveaError):
    """An endpoint that asks for a secret which the request does not carry."""

    code = "restricted"


class LoadFailed(FoveaError):
    """A model could not be loaded or unloaded as asked; what was served is served still."""

    code = "load_failed"


class RegionFailed(FoveaError):
    """Shared memory that cannot be opened, or does not hold the tensor."""

    code = "region_failed"


class NotFound(FoveaError):
    """A model, version or file that is not there."""

    code = "not_found"


class Unavailable(FoveaError):
    """The request is right, but cannot be answered now."""

    code = "unavailable"


class ModelNotReady(Unavailable):
    """The model is loading, failed to load, or has died."""

    code = "model_not_ready"


class QueueFull(Unavailable):
    """Too much is waiting already.

    Attributes:
        retry_after_s: seconds until there should be room, from queue length and measured speed.
    """

    code = "queue_full"

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s

    def with_text(self, text: str) -> Self:
        """Return the same error in other words."""
        return type(self)(text, self.retry_after_s)


class DeadlineExceeded(Unavailable):
    """The caller's time ran out before the answer was there."""

    code = "deadline_exceeded"


class ShuttingDown(Unavailable):
    """The server is stopping and takes nothing new."""

    code = "shutting_down"


class BuildError(FoveaError):
    """No engine came out of the build; the repository is untouched."""

    code = "build_failed"


class InvalidModel(BuildError):
    """The file is not a model that can be read."""

    code = "invalid_model"


class UnsupportedModel(BuildError):
    """A sound model of a kind that is not served; the message says which part."""

    code = "unsupported_model"


class Disagreement(BuildError):
    """The built engine does not compute what its source model does."""

    code = "disagreement"


class BackendError(FoveaError):
    """The runtime underneath."""

    code = "backend_error"


class BackendUnavailable(BackendError):
    """A backend that is not installed, or not usable on this machine."""

    code = "backend_unavailable"


class OutOfMemory(BackendError):
    """The device has not the memory that was asked for."""

    code = "out_of_memory"


class DeviceLost(BackendError):
    """The device does not answer any more: only a new process can use it again."""

    code = "device_lost"


class InferenceFailed(BackendError):
    """The backend refused or broke on this input."""

    code = "inference_failed"
