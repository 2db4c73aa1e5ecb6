"""The exception classes of the whole project.

Every exception has a stable `code` for programs. By default the code is the class name in snake
case, e.g. "queue_full". The message describes for people what is wrong and what to do next. Only
the HTTP and gRPC layers of the server map exceptions to status codes.
"""

from __future__ import annotations

import re
from typing import ClassVar, Self


class FoveaError(Exception):
    """Base class of all errors that Fovea raises deliberately."""

    code: ClassVar[str] = "error"

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "code" not in vars(cls):
            cls.code = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()

    def with_text(self, text: str) -> Self:
        """Return a copy of this error with another message.

        The error itself stays unchanged, because several callers may share it.
        """
        return type(self)(text)


class InvalidRequest(FoveaError):
    """The request or command is malformed."""


class InvalidImage(InvalidRequest):
    """The bytes are not a complete image in a known format."""


class ImageTooLarge(InvalidImage):
    """The image exceeds the limit of bytes or pixels. The check runs before decoding."""


class InvalidOption(InvalidRequest):
    """An option is unknown or out of its range. The message contains the range."""


class InvalidResult(InvalidRequest):
    """The JSON result of an image is damaged, or lacks the map that the caller needs."""


class MethodNotAllowed(InvalidRequest):
    """The path does not support this HTTP method; the message lists the supported methods."""


class BodyTooLarge(InvalidRequest):
    """The request body exceeds the limit. The check runs while the body is read."""


class AnswerTooLarge(InvalidRequest):
    """The response would exceed the size limit of its format. Another format may be smaller."""


class BodyTimeout(InvalidRequest):
    """The request body did not arrive in time."""


class FetchRefused(InvalidRequest):
    """An image URL that is not allowed, or could not be fetched."""


class MalformedJson(InvalidRequest):
    """Malformed JSON in a request of the v2 protocol, for which Triton returns status 500."""


class AlreadyExists(InvalidRequest):
    """The name is already in use."""


class OutOfOrder(InvalidRequest):
    """A frame's number does not follow the stream's last frame. The message contains its number."""


class Unsupported(FoveaError):
    """The request uses a part of the protocol that Fovea does not support."""


class UpgradeRequired(FoveaError):
    """The path needs a WebSocket, but the request has no WebSocket upgrade."""


class Restricted(FoveaError):
    """The endpoint requires a secret that the request does not have."""


class Unauthenticated(FoveaError):
    """The request has no valid key, but needs one."""


class Forbidden(FoveaError):
    """The key does not allow this request. The message names the missing permission."""


class ForeignRequest(FoveaError):
    """A browser sent the request from a page of another site, or to an unknown host name."""


class LoadFailed(FoveaError):
    """A model could not be loaded or unloaded. The versions in service stay in service."""


class RegionFailed(FoveaError):
    """Shared memory cannot be opened, or is too small for the tensor."""


class NotFound(FoveaError):
    """A model, version or file does not exist."""


class Unavailable(FoveaError):
    """The request is valid, but cannot be executed at the moment."""


class ModelNotReady(Unavailable):
    """The model is loading, failed to load, or crashed."""


class ModelLoading(ModelNotReady):
    """The model is loading. Loading takes seconds; a rebuild takes minutes.

    Attributes:
        retry_after_s: seconds to wait before a retry.
    """

    code = "model_not_ready"
    retry_after_s = 1.0


class QueueFull(Unavailable):
    """The queue is full.

    Attributes:
        retry_after_s: estimated seconds until the queue has room. The estimate uses the queue
            length and the measured throughput.
    """

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s

    def __reduce__(self) -> tuple[type[Self], tuple[str, float]]:
        return type(self), (str(self), self.retry_after_s)

    def with_text(self, text: str) -> Self:
        """Return a copy of this error with another message."""
        return type(self)(text, self.retry_after_s)


class RateLimited(QueueFull):
    """The key has used up its rate limit or quota. It may send requests after `retry_after_s`."""


class DeadlineExceeded(Unavailable):
    """The timeout of the request expired before the result was ready."""


class NoMemory(Unavailable):
    """This machine has too little free memory to decode an image at the moment.

    Attributes:
        retry_after_s: seconds to wait before a retry.
    """

    retry_after_s = 1.0


class KeysPending(Unavailable):
    """The server is still fetching the key that signed a token from the token's issuer.

    Attributes:
        retry_after_s: seconds to wait before a retry.
    """

    retry_after_s = 1.0


class ShuttingDown(Unavailable):
    """The server is shutting down and rejects new requests."""


class BuildError(FoveaError):
    """The build produced no engine; the repository is unchanged."""

    code = "build_failed"


class InvalidModel(BuildError):
    """The file is not a readable model."""


class UnsupportedModel(BuildError):
    """The model is valid, but Fovea does not support a part of it. The message names this part."""


class Disagreement(BuildError):
    """The built engine and its source model compute different results."""


class BackendError(FoveaError):
    """Base class of the errors of backends."""


class BackendUnavailable(BackendError):
    """The backend is not installed, or cannot be used on this machine."""


class OutOfMemory(BackendError):
    """The device has too little free memory."""


class DeviceLost(BackendError):
    """The device does not respond any more. Only a new process can use it again."""


class InferenceFailed(BackendError):
    """The backend rejected this input, or failed on it."""


class NotFinite(InferenceFailed):
    """The model computed NaN or infinite values for this input."""
