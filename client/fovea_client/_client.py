"""The synchronous client."""

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

# Response headers to keep. `content-encoding` is dropped, because `iter_bytes` decodes the content.
_READ = ("content-type", "retry-after", BEFORE_TENSORS)


class Client(BaseClient):
    """Sends images to a Fovea server and keeps its connections open.

    Create one client and share it: it may be used from several threads at once. It is also a
    context manager that closes the connections.

    Args:
        url: URL of the server, e.g. "http://127.0.0.1:8000"; `server_address` lists the accepted
            forms.
        timeout: seconds for a whole call, including its waits and retries. A server that sends its
            response headers in many small pieces can exceed this timeout (only with `Client`, not
            with `AsyncClient`).
        retries: number of retries if the server rejects a request with Retry-After, or if no
            connection can be made. A request other than GET that the server may have executed is
            not sent again.
        repeat_unanswered: also retry requests that were sent and got no response. The server may
            have executed them.
        api_key: key for a server that requires one. The default is the environment variable
            FOVEA_API_KEY.
        headers: headers of every request, e.g. the secret of `--http-restricted-api`.
        transport: replaces the transport of httpx, e.g. by `fovea_client.testing.FakeServer`.

    Raises:
        ValueError: `url` is not an http or https URL, or another argument is out of its range.

    Example:
        with Client("http://127.0.0.1:8000", retries=3) as client:
            prediction = client.predict("yolov8n", "bus.jpg", conf=0.5)
            for found in prediction.detections:
                print(found.class_name, found.score, found.box)
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
        """Run a model on one image, or on a list of images.

        The result has `detections` for a detector and `classes` for a classifier. `TASKS` names the
        field of each task.

        Args:
            model: name of the model.
            image: encoded bytes, a path, a URL that the server fetches (it needs `--allow-url`), a
                binary file, an array uint8 [height, width, 3], or a Pillow image. A list is sent in
                one request. Then `images` of the result has the same order, and an image that fails
                gives an `ImageError` in its place.
            **options: version, conf, iou, classes, max_det, top_k, agnostic, mask, tile, overlap,
                timeout_ms, channels: see `PredictOptions`.

        Raises:
            ServerError: the server rejected the request or failed; `QueueFull` if it is overloaded.
            ConnectionFailed: no response came from the server.
            UnexpectedAnswer: the response does not come from a Fovea server.
            OSError: the file cannot be read.

        Example:
            prediction = client.predict("yolov8n", "bus.jpg", conf=0.5)
            print(prediction.image.boxes)  # float32 [n, 4], x1 y1 x2 y2 in pixels
            for result in client.predict("yolov8n", ["a.jpg", "b.jpg"]).images:
                print(result)  # an ImageResult or an ImageError
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
        """Run a model on many images, with up to `in_flight` requests at once (1 to 100).

        The results have the order of the images. The client takes the next image when you take a
        result, so at most `in_flight` images are in memory. If an image fails or cannot be read,
        its result is an `ImageError`. Other errors end the iteration. `predict` describes the other
        arguments and the errors.

        If `images` raises an error, the iteration first yields the results of the images before it.
        If you leave the iteration early, it does not wait for the requests in flight.

        Example:
            paths = sorted(Path("images").glob("*.jpg"))
            for path, result in zip(paths, client.predict_many("yolov8n", paths)):
                print(path, result)
        """
        check_many(in_flight, options)

        def find(image: ImageSource, found: Future[ImageResult | ImageError]) -> None:
            try:
                call = self._predict_one(model, image, **options)
                found.set_result(call if isinstance(call, ImageError) else self._ask(call))
            except Exception as error:  # noqa: BLE001  raised later, in the order of the images
                found.set_exception(error)

        def start_calls() -> Iterator[Future[ImageResult | ImageError]]:
            found: Future[ImageResult | ImageError] = Future()
            try:
                for image in images:
                    # Daemon threads, because the threads of a pool would delay the exit of Python
                    # until their requests end.
                    Thread(target=find, args=(image, found), daemon=True).start()
                    yield found
                    found = Future()
            except Exception as error:  # noqa: BLE001  raised later, in the order of the images
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
        """Run a model on the frames of a camera, over one WebSocket connection.

        The results have the order of the frames. You receive each result as soon as the server
        sends it. A thread takes the frames from `images`. At most `in_flight` frames (1 to 8) are
        in flight, so with a slow model the thread waits before it takes the next frame. If a frame
        fails, or if the overloaded server drops it, its result is an `ImageError`. With `track` you
        need no `stream_id`: the frames of one call are one stream.

        This method needs the package `websockets`. The client's `timeout` limits the time to
        connect, and the time until the response to each frame. The client's `retries` have no
        effect. If you leave the iteration early, the connection is closed.

        Raises:
            ServerError: the server rejected the connection, or would reject every frame.
            ConnectionFailed: the connection could not be made, or has ended.
            UnexpectedAnswer: the server does not support WebSockets.
            ImportError: `websockets` is not installed.

        Example:
            camera = cv2.VideoCapture(0)
            frames = iter(lambda: camera.read()[1], None)
            for result in client.stream("yolov8n", frames, channels="BGR", track="bytetrack"):
                print(result)
        """
        return _frames.stream(_frames.Frames(self._policy, model, in_flight, options), images)

    def annotate(
        self,
        model: str,
        image: ImageSource,
        format: ImageFormat = "image/jpeg",
        **options: Unpack[PredictOptions],
    ) -> bytes:
        """Return the image with its results drawn in, encoded as `format`.

        For an image-to-image model, the method returns the image that the model generated.
        `predict` describes the other arguments and the errors.

        Example:
            Path("found.jpg").write_bytes(client.annotate("yolov8n", "bus.jpg"))
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
        """Run a model on tensors over the v2 protocol of Triton and KServe.

        BF16 inputs are arrays of the dtype `ml_dtypes.bfloat16`. BF16 outputs come back as float32,
        which holds the same values. Arrays of bytes or str are sent as BYTES, and BYTES outputs
        come back as arrays of bytes.

        Args:
            model: name of the model; `Client.model` lists its inputs and outputs.
            inputs: name of each input -> its array. The dtype is the element type of the input.
            outputs: names of the outputs to return; by default all.
            version: version of the model; by default the current version.
            parameters: parameters of the request, e.g. the id of a sequence.

        Returns:
            Name of each output -> its array.

        Raises:
            TypeError: the protocol has no datatype for an input array.
            ServerError: the server rejected the request or failed. The protocol has no error codes,
                so `code` is "http_" followed by the status, e.g. "http_400".
            ConnectionFailed: no response came from the server.
            UnexpectedAnswer: the response does not follow the protocol.

        Example:
            pixels = np.zeros((1, 3, 640, 640), np.float32)
            outputs = client.infer("yolov8n", {"images": pixels})
            print(outputs["output0"].shape)  # (1, 84, 8400)
        """
        return self._ask(_tensors.infer(model, inputs, outputs, version, parameters))

    def embed(
        self,
        model: str,
        texts: Sequence[str],
        *,
        normalize: bool = True,
        version: int | str | None = None,
        normalise: bool | None = None,
    ) -> tuple[Embedding, ...]:
        """Return the embeddings of texts. They can be compared with the embeddings of images.

        `predict` returns the embeddings of images. The errors are described at `predict`.

        Args:
            model: name of a model of images and texts, such as CLIP.
            texts: 1 to 1000 texts.
            normalize: divide each embedding by its length.
            version: version of the model; by default the current version.
            normalise: former name of `normalize`, until version 0.3.

        Example:
            cat, dog = client.embed("clip", ["a cat", "a dog"])
            print(cat.vector @ dog.vector)  # cosine similarity, -1 to 1
        """
        call = self._embed(model, texts, version, normalize=normalize, normalise=normalise)
        return self._ask(call)

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
        """Return the images of an index that are most similar to an image or a text, best first.

        The errors are described at `predict`. A missing index is a `ServerError` with the status
        404.

        Args:
            model: name of a model whose task is embed.
            image: query image, in a form that `predict` accepts.
            text: query text in place of the image, for a model of images and texts.
            k: largest number of matches, 1 to 1000; by default 10.
            index: name of the index, as given to `fovea index`.
            thumbnails: also return small images of the matches, if the index has them.
            version: version of the model; by default the current version.
            channels: order of the channels of an array.

        Example:
            for match in client.search("clip", text="a red car", k=5):
                print(match.name, match.score)
        """
        more = {"k": k, "index": index, "thumbnails": thumbnails or None}
        return self._ask(self._search(model, image, text, version, channels, **more))

    def models(self) -> tuple[ModelSummary, ...]:
        """List the models of the server, including models that could not be loaded.

        The errors are described at `predict`.

        Example:
            for model in client.models():
                print(model.name, model.task, model.ready)
        """
        return self._ask(self._models())

    def model(self, name: str, version: int | str | None = None) -> Model:
        """Return the inputs, outputs, labels and engine card of a model.

        The default version is the one that answers requests without a version. An unknown model is
        a `ServerError` with the status 404. The other errors are described at `predict`.

        Example:
            print(client.model("yolov8n").inputs[0].shape)  # (-1, 3, 640, 640)
        """
        return self._ask(self._model(name, version))

    def card(self, name: str, version: int | str | None = None) -> Mapping[str, Any] | None:
        """Return the engine card of a model, the content of its `card.json`.

        Returns:
            The card. If the model has no card, None; then `Client.model` returns the reason in the
                field `card_reason`.

        Example:
            print(client.card("yolov8n")["precision"])
        """
        return self.model(name, version).card

    def ready(self, model: str | None = None) -> bool:
        """Return whether the server, or the named model, is ready. An unknown model is not ready.

        Raises:
            ConnectionFailed: no response came from the server.
            ServerError: the status means neither ready (2xx) nor not ready (400, 503).

        Example:
            while not client.ready("yolov8n"):
                time.sleep(1)
        """
        return self._ask(self._ready(model))

    def close(self) -> None:
        """Close the connections; a later call raises `RuntimeError`."""
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
