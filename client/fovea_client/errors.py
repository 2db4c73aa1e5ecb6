"""The errors of the client.

Wrong arguments raise `ValueError` and `TypeError`, and unreadable files raise `OSError`.
"""

from __future__ import annotations

OF_ONE_IMAGE = {"invalid_image", "image_too_large", "body_too_large", "fetch_refused"}


class FoveaClientError(Exception):
    """Base class of all errors that this client raises deliberately."""


class ConnectionFailed(FoveaClientError):
    """The client received no response: the connection failed, broke, or timed out.

    Attributes:
        unanswered: True if the request was sent, so the server may have executed it.
    """

    def __init__(self, message: str, *, unanswered: bool = False) -> None:
        super().__init__(message)
        self.unanswered = unanswered


class UnexpectedAnswer(FoveaClientError):
    """The response does not come from a Fovea server."""


class ServerError(FoveaClientError):
    """The server rejected the request, or failed to execute it.

    Attributes:
        status: HTTP status, 300 to 599.
        code: stable code for programs, e.g. "invalid_image". The code is "http_<status>" for an
            error of `infer`, because its protocol has no codes, and for a response from another
            program, such as a proxy.
        message: message for people. It explains the error and what to do next.
        retry_after_s: seconds to wait before a retry; None if the server sent no Retry-After.

    Example:
        try:
            client.predict("yolov8n", "bus.jpg")
        except ServerError as error:
            print(error.status, error.code, error.message)
    """

    def __init__(
        self, status: int, code: str, message: str, retry_after_s: float | None = None
    ) -> None:
        shown = "" if code == f"http_{status}" else f"{code}, "
        super().__init__(f"{message} ({shown}HTTP {status})")
        self.status = status
        self.code = code
        self.message = message
        self.retry_after_s = retry_after_s

    @property
    def of_one_image(self) -> bool:
        """Return whether the error concerns only this image, so that other images may succeed."""
        return self.code in OF_ONE_IMAGE


class QueueFull(ServerError):
    """The queue of the server is full (HTTP 429)."""
