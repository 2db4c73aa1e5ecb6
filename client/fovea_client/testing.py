"""A fake server for tests of programs that use this client. It uses no network.

Example:
    server = FakeServer({"yolov8n": ImageResult(640, 480, 1, (Detection(box, 0.9, 0, "person"),))})
    client = Client("http://fake", transport=server)
    assert client.predict("yolov8n", b"any").detections[0].class_name == "person"
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, TypeAlias
from urllib.parse import unquote

import httpx
import numpy as np

from fovea_client._json import as_json
from fovea_client.answers import ImageError, ImageResult, Timing
from fovea_client.errors import OF_ONE_IMAGE, ConnectionFailed, ServerError
from fovea_client.models import Model, ModelSummary

Outcome: TypeAlias = ImageResult | ImageError | ServerError | ConnectionFailed


class FakeServer(httpx.MockTransport):
    """A transport for `Client` and `AsyncClient` that responds like a server with these models.

    Args:
        results: model name -> outcome of requests to this model. An outcome is a result that all
            images get, an error that all requests get, or a function. The function receives the
            bytes of an image, or its URL as str, and returns a result or an error.

    Attributes:
        requests: received requests in their order. Your tests can check them.

    Example:
        server = FakeServer({"yolov8n": QueueFull(429, "queue_full", "try again", 0.1)})
        client = Client("http://fake", retries=1, transport=server)
    """

    def __init__(self, results: Mapping[str, Outcome | Callable[[bytes | str], Outcome]]) -> None:
        super().__init__(self._answer)
        self.requests: list[httpx.Request] = []
        self._results = results

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        _, api, *path = map(unquote, request.url.raw_path.decode().partition("?")[0].split("/"))
        if path == ["health", "ready"]:
            return httpx.Response(200)
        if (api, path) == ("v1", ["models"]):
            listed = [asdict(_summary(name)) for name in self._results]
            return httpx.Response(200, json={"models": listed})
        match path:
            case ["models", name, "ready"]:
                return httpx.Response(200 if name in self._results else 400)
            case ["models", name, *_, "predict"] if name in self._results:
                return self._predict(name, request)
            case ["models", name] | ["models", name, "versions", _] if name in self._results:
                return httpx.Response(200, json=asdict(_description(name)))
        return _error(ServerError(404, "not_found", f"FakeServer has no result for {request.url}"))

    def _predict(self, name: str, request: httpx.Request) -> httpx.Response:
        images, result = _images(request), self._results[name]
        outcomes = [result(image) if callable(result) else result for image in images]
        results: list[ImageResult | ImageError] = []
        for each in outcomes:
            if isinstance(each, ConnectionFailed):
                kind = httpx.ReadError if each.unanswered else httpx.ConnectError
                raise kind(str(each), request=request)
            if isinstance(each, ServerError):
                return _error(each)
            if isinstance(each, ImageError) and len(outcomes) == 1:
                alone = ServerError(400, each.code, each.message)
                if not alone.of_one_image:
                    raise ValueError(
                        f"{each}: for one image, servers only return the errors "
                        f"{sorted(OF_ONE_IMAGE)}"
                    )
                return _error(alone)
            results.append(each)
        accepted = request.headers["accept"]
        if accepted != "application/json":
            return httpx.Response(200, headers={"content-type": accepted}, content=images[0])
        body = {
            "model": name,
            "version": "1",
            "task": "detect",
            "images": [as_json(each) for each in results],
            "timing_ms": asdict(Timing(0, 0, 0, 0, 0, 0)),
        }
        text = json.dumps(body, default=_plain)
        return httpx.Response(200, content=text.encode())


def _images(request: httpx.Request) -> list[Any]:
    kind, body = request.headers["content-type"], request.content
    if kind == "application/json":
        entries = json.loads(body)["images"]
        return [e.get("url") or base64.b64decode(e["data"]) for e in entries]
    if not kind.startswith("multipart/"):
        return [body]
    boundary = b"--" + kind.partition("boundary=")[2].encode()
    parts = (b"\r\n" + body).split(b"\r\n" + boundary)[1:-1]
    return [part.partition(b"\r\n\r\n")[2] for part in parts]


def _plain(value: Any) -> Any:
    """Convert a NumPy number to a Python number, for `json.dumps`."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"FakeServer cannot return {value!r}: give it a result or an error")


def _error(error: ServerError) -> httpx.Response:
    seconds = error.retry_after_s
    headers = {} if seconds is None else {"retry-after": f"{seconds:g}"}
    body = {"error": {"code": error.code, "message": error.message}}
    return httpx.Response(error.status, headers=headers, json=body)


def _summary(name: str) -> ModelSummary:
    return ModelSummary(name, "1", True, None, (), "detect", True, None, None, 0)


def _description(name: str) -> Model:
    return Model(
        **asdict(_summary(name)),
        max_batch_size=0,
        inputs=(),
        outputs=(),
        preprocess=None,
        labels=None,
        card=None,
        card_reason="FakeServer has no engines",
    )
