"""The client's own error tree.

Wrong arguments are the caller's own mistakes and stay `ValueError`, `TypeError` and `OSError`.
"""

from __future__ import annotations

OF_ONE_IMAGE = {"invalid_image", "image_too_large", "body_too_large", "fetch_refused"}


class FoveaClientError(Exception):
    """Base of every error that this client raises on purpose."""


class ConnectionFailed(FoveaClientError):
    """No answer came: nobody listens at the address, or the answer was not there in time.

    Attributes:
        unanswered: True if the request was sent, so that the server may have executed it.
    """

    def __init__(self, message: str, *, unanswered: bool = False) -> None:
        super().__init__(message)
        self.unanswered = unanswered


class UnexpectedAnswer(FoveaClientError):
    """An answer came that no Fovea server sends."""


class ServerError(FoveaClientError):
    """The server refused the request or failed to answer it.

    Attributes:
        status: HTTP status, 300 to 599.
        code: stable word for programs, e.g. "invalid_image"; "http_<status>" of `infer`, whose
            protocol has none, and when something other than Fovea answered, such as a proxy.
        message: what to do next, for people.
        retry_after_s: seconds the server asks to wait before trying again; None when it does
            not invite that.
    """

    def __init__(
        self, status: int, code: str, message: str, retry_after_s: float | None = None
    ) -> None:
        super().__init__(f"{message} ({code}, HTTP {status})")
        self.status = status
        self.code = code
        self.message = message
        self.retry_after_s = retry_after_s

    @property
    def of_one_image(self) -> bool:
        """Return True if the error does not concern the next image."""
        return self.code in OF_ONE_IMAGE


class QueueFull(ServerError):
    """Too much is waiting at the server already (HTTP 429)."""
