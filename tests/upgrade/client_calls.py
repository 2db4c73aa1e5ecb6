"""Makes the calls of `fovea_client` that programs of users make, and prints their results.

    python client_calls.py URL IMAGES

It runs with the client of an older version and with the newest one.
"""

import asyncio
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import fovea_client
from fovea_client import AsyncClient, Client, ServerError

IMAGES = {
    "digits": "scene.jpg",
    "digits-classify": "digit.jpg",
    "digits-embed": "seven.jpg",
    "digits-obb": "scene.jpg",
    "digits-pose": "scene.jpg",
    "digits-segment": "scene.jpg",
    "plates-read": "plate.jpg",
    "cards": "scene.jpg",
}


def send(call: Callable[[], Any]) -> Any:
    """Make a call; return its result or error as JSON."""
    try:
        return _simplify(call())
    except ServerError as error:
        return {"error": type(error).__name__, "status": error.status, "code": error.code}


def _simplify(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return {"shape": list(value.shape), "data": value.ravel().tolist()[:64]}
    if isinstance(value, bytes):
        return {"begins": value[:4].hex()}
    if isinstance(value, list | tuple):
        return [_simplify(each) for each in value]
    if is_dataclass(value):
        return {each.name: _simplify(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _simplify(each) for key, each in value.items()}
    return value if value is None or isinstance(value, str | int | float | bool) else repr(value)


def list_calls(client: Client, images: Path) -> dict[str, Callable[[], Any]]:
    """List all calls by their names in the record."""
    scene, other, seven = images / "scene.jpg", images / "other.jpg", images / "seven.jpg"
    tensors = {
        "INPUT0": np.array([[1, 2, 3, 4]], np.float32),
        "INPUT1": np.array([[10, 20, 30, 40]], np.float32),
    }
    predict, digits = client.predict, partial(client.predict, "digits")
    return {
        "ready": client.ready,
        "ready digits": partial(client.ready, "digits"),
        "models": client.models,
        "model": partial(client.model, "digits"),
        "model, version": partial(client.model, "digits", 2),
        "card": partial(client.card, "digits"),
        "two": partial(digits, [scene, other], conf=0.5),
        "bytes": partial(digits, scene.read_bytes(), max_det=1),
        "classes": partial(digits, scene, classes=["5", "9"]),
        "many": lambda: list(client.predict_many("digits", [scene, other])),
        "annotate": partial(client.annotate, "digits", scene),
        "embed": partial(client.embed, "digits-embed", ["a red seven"]),
        "labels": partial(predict, "digits-embed", seven, labels=["a red seven"]),
        "search": partial(client.search, "digits-embed", seven, k=2),
        "search by words": partial(client.search, "digits-embed", text="a red seven", k=2),
        "infer": partial(client.infer, "simple", tensors),
        "no such model": partial(predict, "nothing", scene),
        "bad image": partial(digits, b"no image"),
        "bad option": partial(digits, scene, conf=7),
        "not ready": partial(predict, "broken", scene),
        "too many": partial(digits, [scene] * 9),
        "no such search": partial(client.search, "digits", scene),
        **{
            f"predict {model}": partial(predict, model, images / image)
            for model, image in IMAGES.items()
        },
    }


async def call_async_client(url: str, images: Path) -> dict[str, Any]:
    async with AsyncClient(url) as client:
        results = await asyncio.gather(
            client.models(),
            client.ready(),
            *(client.predict(model, images / IMAGES[model]) for model in ("digits", "plates-read")),
        )
        try:
            await client.predict("nothing", images / "scene.jpg")
        except ServerError as error:
            code = error.code
    return {"asynchronous": [*map(_simplify, results), code]}


def main() -> None:
    url, images = sys.argv[1], Path(sys.argv[2])
    with Client(url) as client:
        results = {name: send(call) for name, call in list_calls(client, images).items()}
    results |= asyncio.run(call_async_client(url, images))
    json.dump({"file": fovea_client.__file__, "results": results}, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
