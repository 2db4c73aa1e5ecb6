"""The error tree of the whole project.

Every error carries a stable `code` word, for programs: the name of its class, as in "queue_full",
unless the class sets another. Its message says what to do next, for people. HTTP and gRPC status
codes are decided at the edge of the server, nowhere else.
"""

from __future__ import annotations

import re
from typing import ClassVar, Self


class FoveaError(Exception):
    """Base of every error that Fovea raises on purpose."""

    code: ClassVar[str] = "error"

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "code" not in vars(cls):
            cls.code = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()

    def with_text(self, text: str) -> Self:
        """Return the same error in other words: a new one, because callers may share this one."""
        return type(self)(text)


class InvalidRequest(FoveaError):
    """The request or command cannot be understood."""


class InvalidImage(InvalidRequest):
    """The bytes are not a whole image in a known format."""


class ImageTooLarge(InvalidImage):
    """The image has more bytes or pixels than the limit; found before it is decoded."""


class InvalidOption(InvalidRequest):
    """An option is unknown or out of its range; the message names the range."""


class InvalidResult(InvalidRequest):
    """JSON that should be the result of an image is none: it is damaged, or its map is left out."""


class MethodNotAllowed(InvalidRequest):
    """The address does not take this method of HTTP; the message names those that it takes."""


class BodyTooLarge(InvalidRequest):
    """The request body is over the limit; found while reading, not after."""


class AnswerTooLarge(InvalidRequest):
    """The answer would be over the limit of its form; another form may have it."""


class BodyTimeout(InvalidRequest):
    """The request body did not arrive in time."""


class FetchRefused(InvalidRequest):
    """An image URL that may not, or could not, be fetched."""


class MalformedJson(InvalidRequest):
    """JSON of the v2 protocol that cannot be read. Triton calls this an error of its own (500)."""


class AlreadyExists(InvalidRequest):
    """A name that is taken."""


class OutOfOrder(InvalidRequest):
    """A frame of a stream that is not behind the last one; the message has that one's number."""


class Unsupported(FoveaError):
    """A part of the protocol that is not served."""


class UpgradeRequired(FoveaError):
    """An address that has a WebSocket, and a request that did not ask for one."""


class Restricted(FoveaError):
    """An endpoint that asks for a secret which the request does not carry."""


class Unauthenticated(FoveaError):
    """A request without a key where one is needed, or with one that does not hold."""


class Forbidden(FoveaError):
    """A request whose key does not allow it; the message names what is missing."""


class ForeignRequest(FoveaError):
    """A request that the page of another site made a browser send, or that went to its name."""


class LoadFailed(FoveaError):
    """A model could not be loaded or unloaded as requested; what was served is served still."""


class RegionFailed(FoveaError):
    """Shared memory that cannot be opened, or does not hold the tensor."""


class NotFound(FoveaError):
    """A model, version or file that is not there."""


class Unavailable(FoveaError):
    """The request is right, but cannot be answered now."""


class ModelNotReady(Unavailable):
    """The model is loading, failed to load, or has died."""


class ModelLoading(ModelNotReady):
    """The model is being loaded, which takes seconds; built anew it takes minutes.

    Attributes:
        retry_after_s: seconds after which to try again.
    """

    code = "model_not_ready"
    retry_after_s = 1.0


class QueueFull(Unavailable):
    """Too much is waiting already.

    Attributes:
        retry_after_s: seconds until there should be room, from queue length and measured speed.
    """

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s

    def __reduce__(self) -> tuple[type[Self], tuple[str, float]]:
        return type(self), (str(self), self.retry_after_s)

    def with_text(self, text: str) -> Self:
        """Return the same error in other words."""
        return type(self)(text, self.retry_after_s)


class RateLimited(QueueFull):
    """The key of a request has used up its rate or its quota, until `retry_after_s` from now."""


class DeadlineExceeded(Unavailable):
    """The caller's time ran out before the answer was there."""


class NoMemory(Unavailable):
    """This machine has not the memory for an image now; the image may be a good one.

    Attributes:
        retry_after_s: seconds after which to try again.
    """

    retry_after_s = 1.0


class KeysPending(Unavailable):
    """A token is signed with a key that is being requested from its issuer.

    Attributes:
        retry_after_s: seconds after which to try again.
    """

    retry_after_s = 1.0


class ShuttingDown(Unavailable):
    """The server is stopping and takes nothing new."""


class BuildError(FoveaError):
    """No engine came out of the build; the repository is untouched."""

    code = "build_failed"


class InvalidModel(BuildError):
    """The file is not a model that can be read."""


class UnsupportedModel(BuildError):
    """A sound model of a kind that is not served; the message says which part."""


class Disagreement(BuildError):
    """The built engine does not compute what its source model does."""


class BackendError(FoveaError):
    """The runtime underneath."""


class BackendUnavailable(BackendError):
    """A backend that is not installed, or not usable on this machine."""


class OutOfMemory(BackendError):
    """The device has not the memory that was requested."""


class DeviceLost(BackendError):
    """The device does not answer any more: only a new process can use it again."""


class InferenceFailed(BackendError):
    """The backend refused or broke on this input."""


class NotFinite(InferenceFailed):
    """The numbers that the model computed of this input are NaN or infinite."""
