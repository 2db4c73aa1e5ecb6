"""Sends requests synchronously."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable
from typing import Self, TypeVar, Unpack

import httpx

from fovea_client import _wire
from fovea_client._wire import ImageFormat, PredictOptions, Request
from fovea_client.answers import Model, ModelSummary, Prediction
from fovea_client.errors import (
    ConnectionFailed,
    FoveaClientError,
    ServerError,
    UnexpectedAnswer,
)
from fovea_client.images import ImageSource, image_bytes

Answer = TypeVar("Answer")


class Client:
    """Sends images to a Fovea server; keeps its connections, so create one and share it.

    May be used from several threads at once, and as a context manager. A `url` that is not an http
    or https address is a `ValueError`.

    Args:
        url: address of the server, as `server_address` takes it.
        timeout: seconds to wait for the connection, and for each read and write.
        retries: number of further attempts when the server sends Retry-After, or when no connection
            could be made or kept.
    """

    def __init__(self, url: str, *, timeout: float = 30.0, retries: int = 0) -> None:
        self._url = server_address(url)
        self._timeout = timeout
        self._retries = retries
        self._http = httpx.Client(base_url=self._url, timeout=timeout)

    def predict(
        self, model: str, image: ImageSource, **options: Unpack[PredictOptions]
    ) -> Prediction:
        """Find what is on one image: `detections` of the result are objects, `classes` classes.

        Args:
            model: name of the model.
            image: encoded bytes, a path, a binary file, or uint8 [height, width, 3] RGB.
            **options: version, conf, iou, classes, max_det, top_k, agnostic, mask,
                tile, overlap, timeout_ms.

        Raises:
            ServerError: the server refused or failed; `QueueFull` when it is overloaded.
            ConnectionFailed: the server did not answer.
            UnexpectedAnswer: the answer is not Fovea's.
            OSError: the file cannot be read.
        """
        return self.predict_many(model, [image], **options)

    def predict_many(
        self, model: str, images: Iterable[ImageSource], **options: Unpack[PredictOptions]
    ) -> Prediction:
        """Find what is on several images with one request.

        Answers are in the order of the images; a bad image only fails itself and gives an
        `ImageError` in its place. Arguments and errors are those of `predict`.
        """
        request = _wire.predict(model, [image_bytes(image) for image in images], **options)
        return self._ask(request, _wire.prediction)

    def annotate(
        self,
        model: str,
        image: ImageSource,
        format: ImageFormat = "image/jpeg",
        **options: Unpack[PredictOptions],
    ) -> bytes:
        """Return the image with its detections drawn in, encoded as `format`.

        The other arguments and the errors are those of `predict`.
        """
        request = _wire.predict(model, [image_bytes(image)], accept=format, **options)
        return self._ask(request, _wire.image)

    def models(self) -> tuple[ModelSummary, ...]:
        """List the served models, and those that could not be loaded; raises as `predict` does."""
        return self._ask(Request("GET", "/v1/models"), _wire.models)

    def model(self, name: str, version: int | str | None = None) -> Model:
        """Return the inputs, outputs, labels and engine card of a model.

        By default of the version that answers requests. An unknown model is a `ServerError` with
        status 404; the other errors are those of `predict`.
        """
        return self._ask(Request("GET", _wire.model_path(name, version)), _wire.model)

    def ready(self, model: str | None = None) -> bool:
        """Return True if the server, or the named model, is ready; False for an unknown model.

        Raises:
            ConnectionFailed: the server did not answer.
            ServerError: the answer is neither yes nor no.
        """
        return self._ask(Request("GET", _wire.ready_path(model)), _wire.ready)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _ask(self, request: Request, read: Callable[[httpx.Response], Answer]) -> Answer:
        attempt = 0
        while True:
            try:
                return read(self._send(request))
            except FoveaClientError as error:
                wait = wait_s(error, attempt, self._timeout)
                if wait is None or attempt >= self._retries:
                    raise
            time.sleep(wait)
            attempt += 1

    def _send(self, request: Request) -> httpx.Response:
        try:
            return self._http.request(
                request.method, request.path, headers=request.headers, content=request.body
            )
        except httpx.TimeoutException as error:
            raise ConnectionFailed(
                f"{self._url} did not answer within {self._timeout:g} s"
            ) from error
        except httpx.RequestError as error:
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                raise ConnectionFailed(
                    f"the certificate of {self._url} is not trusted ({error}): set SSL_CERT_FILE "
                    "to the file of the certificate, PEM, or of the authority that signed it"
                ) from error
            if isinstance(error, httpx.RemoteProtocolError) and "illegal" in str(error):
                raise UnexpectedAnswer(
                    f"{self._url} does not answer in HTTP ({error}): is it the port for gRPC? "
                    "`fovea serve` has HTTP on port 8000 and gRPC on 8001"
                ) from error
            raise ConnectionFailed(
                f"no answer from {self._url} ({error}): is a server running there? "
                "`fovea serve` starts one"
            ) from error


def server_address(url: str) -> str:
    """Return the address of a server with its scheme: http where there is none, as in "host:8000".

    What is no http or https address is a `ValueError`.
    """
    address = url if "://" in url else f"http://{url}"
    try:
        parsed = httpx.URL(address)
    except httpx.InvalidURL as error:
        raise ValueError(f"{url!r} is not an address: {error}") from error
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ValueError(f"{url!r} is not an address such as http://127.0.0.1:8000")
    return address.rstrip("/")


FIRST_WAIT_S = 0.1


def wait_s(error: FoveaClientError, attempt: int, longest_s: float) -> float | None:
    """Return the seconds to wait after an error before the next attempt; None for no attempt.

    The server's Retry-After is always respected; after a failed connection the waits are 0.1, 0.2,
    0.4 ... s. Up to a quarter more, at random, keeps clients that were refused together from
    returning together. There is no attempt if the wait would be longer than `longest_s`.
    """
    match error:
        case ServerError(retry_after_s=float(asked)):
            wait = asked
        case ConnectionFailed():
            wait = FIRST_WAIT_S * 2.0**attempt
        case _:
            return None
    return None if wait > longest_s else wait * random.uniform(1.0, 1.25)
