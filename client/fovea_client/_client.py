"""Sends requests synchronously."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing
from threading import Thread
from typing import Any, Self, Unpack

import httpx
from numpy.typing import NDArray

from fovea_client import _frames, _tensors
from fovea_client._attempts import Answer, Attempts, Call
from fovea_client._base_client import MAX_IN_FLIGHT, BaseClient, Images, check_many
from fovea_client._requests import ImageFormat, PredictOptions
from fovea_client._responses import BEFORE_TENSORS
from fovea_client._tensors import Parameters
from fovea_client.answers import ImageError, ImageResult, Prediction
from fovea_client.images import Channels, ImageSource
from fovea_client.models import Model, ModelSummary
from fovea_client.results import Embedding, Match

# Headers of an answer; its content is decoded.
_READ = ("content-type", "retry-after", BEFORE_TENSORS)


class Client(BaseClient):
    """Sends images to a Fovea server; keeps its connections, so create one and share it.

    May be used from several threads at once, and as a context manager. Raises `ValueError` if the
    `url` is not an http or https address, or another argument is not right.

    Args:
        url: address of the server, as `server_address` takes it.
        timeout: seconds for a call in all, with its waits and further attempts. Only headers that a
            server sends in many small pieces can hold `Client` up for longer, not `AsyncClient`.
        retries: number of further attempts when the server refuses with Retry-After, or when no
            connection can be made. A request that may have been executed is not sent again, unless
            it only asks for information.
        repeat_unanswered: also repeat requests that were sent but not answered. The server may have
            executed them.
        api_key: of a server that asks for one; default FOVEA_API_KEY of the environment.
        headers: of every request, e.g. the secret of `--http-restricted-api`.
        transport: sends instead of httpx's own, e.g. `fovea_client.testing.FakeServer`.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout: float = 30.0,
        retries: int = 0,
        repeat_unanswered: bool = False,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        super().__init__(url, timeout, retries, repeat_unanswered, api_key, headers)
        most = MAX_IN_FLIGHT
        limits = httpx.Limits(max_connections=most, max_keepalive_connections=most)
        self._http = httpx.Client(limits=limits, transport=transport)

    def predict(self, model: str, image: Images, **options: Unpack[PredictOptions]) -> Prediction:
        """Find what is on an image: `detections` of the result are objects, `classes` classes.

        Args:
            model: name of the model.
            image: encoded bytes, a path, an address that the server fetches (with `--allow-url`),
                a binary file, uint8 [height, width, 3], or an image of Pillow. A list is sent with
                one request; then `images` of the result are in its order, and a bad image only
                fails itself and gives an `ImageError` in its place.
            **options: version, conf, iou, classes, max_det, top_k, agnostic, mask,
                tile, overlap, timeout_ms, channels: see `PredictOptions`.

        Raises:
            ServerError: the server refused or failed; `QueueFull` when it is overloaded.
            ConnectionFailed: the server did not answer.
            UnexpectedAnswer: the answer is not Fovea's.
            OSError: the file cannot be read.
        """
        return self._ask(self._predict(model, image, **options))

    def predict_many(
        self,
        model: str,
        images: Iterable[ImageSource],
        *,
        in_flight: int = 16,
        **options: Unpack[PredictOptions],
    ) -> Iterator[ImageResult | ImageError]:
        """Find what is on each of many images, with `in_flight` requests under way, 1 to 100.

        Results come in the order of the images. Images are taken as results are: at most
        `in_flight` of them are in memory. A bad image, or a file that cannot be read, only fails
        itself and gives an `ImageError` in its place. Other errors end the iteration; they and the
        arguments are as for `predict`. An error of `images` comes after the results of the images
        before. Who leaves the iteration does not wait for the requests under way.
        """
        check_many(in_flight, options)

        def find(image: ImageSource, found: Future[ImageResult | ImageError]) -> None:
            try:
                call = self._predict_one(model, image, **options)
                found.set_result(call if isinstance(call, ImageError) else self._ask(call))
            except Exception as error:  # noqa: BLE001  it is raised in its turn
                found.set_exception(error)

        def start_calls() -> Iterator[Future[ImageResult | ImageError]]:
            found: Future[ImageResult | ImageError] = Future()
            try:
                for image in images:
                    # Python would wait for the threads of a pool before it exits.
                    Thread(target=find, args=(image, found), daemon=True).start()
                    yield found
                    found = Future()
            except Exception as error:  # noqa: BLE001  it is raised in its turn
                found.set_exception(error)
                yield found

        under_way: deque[Future[ImageResult | ImageError]] = deque()
        for found in start_calls():
            under_way.append(found)
            if len(under_way) == in_flight:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()

    def stream(
        self,
        model: str,
        images: Iterable[ImageSource],
        *,
        in_flight: int = 4,
        **options: Unpack[PredictOptions],
    ) -> Iterator[ImageResult | ImageError]:
        """Find what is on the frames of a camera, over one connection (WebSocket).

        Each result comes as soon as it is there, in order. Images are taken in a thread, as results
        are: at most `in_flight` of them, 1 to 8, are under way, so a slow model slows `images`.
        A frame that fails, or that the server has no room or time for, gives an `ImageError` in its
        place. `track` needs no `stream_id`: the frames of a call are a stream of their own.

        It takes the package `websockets`. `timeout` is for the connection, and for the answer to a
        frame; `retries` do not apply. Who leaves the iteration closes the connection.

        Raises:
            ServerError: the server refused the connection, or would refuse every frame.
            ConnectionFailed: the connection could not be made, or has ended.
            ImportError: `websockets` is not installed.
        """
        return _frames.stream(_frames.Frames(self._policy, model, in_flight, options), images)

    def annotate(
        self,
        model: str,
        image: ImageSource,
        format: ImageFormat = "image/jpeg",
        **options: Unpack[PredictOptions],
    ) -> bytes:
        """Return the image with its detections drawn in, encoded as `format`.

        Of a model that makes a picture of an image, it is this picture.

        The other arguments and the errors are as for `predict`.
        """
        return self._ask(self._annotate(model, image, format, **options))

    def infer(
        self,
        model: str,
        inputs: Mapping[str, NDArray[Any]],
        *,
        outputs: Iterable[str] | None = None,
        version: int | str | None = None,
        parameters: Parameters | None = None,
    ) -> dict[str, NDArray[Any]]:
        """Return the outputs of a model for tensors, over the v2 protocol of Triton and KServe.

        BF16 is sent from arrays of ml_dtypes' bfloat16, and comes back as float32, which holds its
        values. Arrays of bytes and str are sent as BYTES, and come back as arrays of bytes.

        Args:
            model: name of the model; `model` describes its inputs and outputs.
            inputs: an array for the name of each input, of the input's own element type.
            outputs: names of the outputs to return; by default all.
            version: version of the model; by default the newest.
            parameters: of the request, e.g. of a sequence.

        Raises:
            TypeError: the protocol has no tensors of this type.
            ServerError: the server refused or failed. The protocol has no words for programs: the
                `code` is "http_" and the status.
            ConnectionFailed: the server did not answer.
            UnexpectedAnswer: the answer does not follow the protocol.
        """
        return self._ask(_tensors.infer(model, inputs, outputs, version, parameters))

    def embed(
        self,
        model: str,
        texts: Sequence[str],
        *,
        normalize: bool = True,
        version: int | str | None = None,
    ) -> tuple[Embedding, ...]:
        """Return the vectors of texts, in the space of the vectors of images by `predict`.

        Args:
            model: of images and texts, such as CLIP.
            texts: 1 to 1000.
            normalize: divide each vector by its length.
            version: of the model.

        The errors are as for `predict`.
        """
        return self._ask(self._embed(model, texts, version, normalize=normalize))

    def search(
        self,
        model: str,
        image: ImageSource | None = None,
        *,
        text: str | None = None,
        k: int | None = None,
        index: str | None = None,
        thumbnails: bool = False,
        version: int | str | None = None,
        channels: Channels = "RGB",
    ) -> tuple[Match, ...]:
        """Return the images of an index that are most like an image, or words, best first.

        Args:
            model: whose task is embed.
            image: as for `predict`.
            text: in place of the image, of a model of images and texts.
            k: the most matches, 1 to 1000; default 10.
            index: the name that it was built by, with `fovea index`.
            thumbnails: have the pictures of the matches, too, if the index was built with them.
            version: of the model.
            channels: order of the channels of an array.

        The errors are as for `predict`; without such an index, a `ServerError` with status 404.
        """
        more = {"k": k, "index": index, "thumbnails": thumbnails or None}
        return self._ask(self._search(model, image, text, version, channels, **more))

    def models(self) -> tuple[ModelSummary, ...]:
        """List the served models, and those that could not be loaded; raises as `predict` does."""
        return self._ask(self._models())

    def model(self, name: str, version: int | str | None = None) -> Model:
        """Return the inputs, outputs, labels and engine card of a model.

        By default of the version that answers requests. An unknown model is a `ServerError` with
        status 404; the other errors are as for `predict`.
        """
        return self._ask(self._model(name, version))

    def card(self, name: str, version: int | str | None = None) -> Mapping[str, Any] | None:
        """Return the engine card of a model; None where `card_reason` of `model` says why."""
        return self.model(name, version).card

    def ready(self, model: str | None = None) -> bool:
        """Return True if the server, or the named model, is ready; False for an unknown model.

        Raises:
            ConnectionFailed: the server did not answer.
            ServerError: the answer is neither yes nor no.
        """
        return self._ask(self._ready(model))

    def close(self) -> None:
        """Close the connections; a later call is a `RuntimeError`."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _ask(self, call: Call[Answer]) -> Answer:
        attempts = Attempts(call, self._policy)
        for wait_s, request in attempts:
            time.sleep(wait_s)
            try:
                response = self._send(request, attempts.until)
            except httpx.RequestError as error:
                attempts.failed(error)
            else:
                attempts.received(response)
        return attempts.answer

    def _send(self, request: httpx.Request, until: float) -> httpx.Response:
        pieces = []
        with closing(self._http.send(request, stream=True)) as response:
            for piece in response.iter_bytes():
                if time.monotonic() > until:
                    raise httpx.ReadTimeout("", request=request)
                pieces.append(piece)
        headers = {name: value for name, value in response.headers.items() if name in _READ}
        return httpx.Response(response.status_code, headers=headers, content=b"".join(pieces))
