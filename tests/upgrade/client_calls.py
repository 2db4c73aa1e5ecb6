"""Makes the calls of `fovea_client` that programs of users make, and prints what came back.

    python client_calls.py URL IMAGES

It is run with the client of an older version, and with the newest.
"""

import asyncio
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

import fovea_client
from fovea_client import AsyncClient, Client, ServerError

MODELS = {
    "digits": "scene.jpg",
    "digits-classify": "digit.jpg",
    "digits-embed": "seven.jpg",
    "digits-obb": "scene.jpg",
    "digits-pose": "scene.jpg",
    "digits-segment": "scene.jpg",
    "plates-read": "plate.jpg",
    "cards": "scene.jpg",
}


def told(ask: Callable[[], Any]) -> Any:
    """Call, and put what comes back, or the error, into JSON."""
    try:
        return _plain(ask())
    except ServerError as error:
        return {"error": type(error).__name__, "status": error.status, "code": error.code}


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return {"shape": list(value.shape), "data": value.ravel().tolist()[:64]}
    if isinstance(value, bytes):
        return {"begins": value[:4].hex()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if is_dataclass(value):
        return {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    return value if value is None or isinstance(value, str | int | float | bool) else repr(value)


def synchronous(client: Client, images: Path) -> dict[str, Any]:
    scene, other = images / "scene.jpg", images / "other.jpg"
    calls: dict[str, Callable[[], Any]] = {
        "ready": client.ready,
        "ready digits": lambda: client.ready("digits"),
        "models": client.models,
        "model": lambda: client.model("digits"),
        "model, version": lambda: client.model("digits", 2),
        "card": lambda: client.card("digits"),
        "two": lambda: client.predict("digits", [scene, other], conf=0.5),
        "bytes": lambda: client.predict("digits", scene.read_bytes(), max_det=1),
        "classes": lambda: client.predict("digits", scene, classes=["5", "9"]),
        "many": lambda: list(client.predict_many("digits", [scene, other])),
        "annotate": lambda: client.annotate("digits", scene),
        "embed": lambda: client.embed("digits-embed", ["a red seven"]),
        "labels": lambda: client.predict(
            "digits-embed", images / "seven.jpg", labels=["a red seven"]
        ),
        "search": lambda: client.search("digits-embed", images / "seven.jpg", k=2),
        "search by words": lambda: client.search("digits-embed", text="a red seven", k=2),
        "infer": lambda: client.infer(
            "simple",
            {
                "INPUT0": np.array([[1, 2, 3, 4]], np.float32),
                "INPUT1": np.array([[10, 20, 30, 40]], np.float32),
            },
        ),
        "no such model": lambda: client.predict("nothing", scene),
        "bad image": lambda: client.predict("digits", b"no image"),
        "bad option": lambda: client.predict("digits", scene, conf=7),
        "not ready": lambda: client.predict("broken", scene),
        "too many": lambda: client.predict("digits", [scene] * 9),
        "no such search": lambda: client.search("digits", scene),
    }
    for model, image in MODELS.items():
        calls[f"predict {model}"] = lambda model=model, image=image: client.predict(  # type: ignore[misc]
            model, images / image
        )
    return {name: told(ask) for name, ask in calls.items()}


async def asynchronous(url: str, images: Path) -> dict[str, Any]:
    async with AsyncClient(url) as client:
        answers = await asyncio.gather(
            client.models(),
            client.ready(),
            *(client.predict(model, images / MODELS[model]) for model in ("digits", "plates-read")),
        )
        try:
            await client.predict("nothing", images / "scene.jpg")
        except ServerError as error:
            refused = error.code
    return {"asynchronous": [*map(_plain, answers), refused]}


def main() -> None:
    url, images = sys.argv[1], Path(sys.argv[2])
    with Client(url) as client:
        answers = synchronous(client, images)
    answers |= asyncio.run(asynchronous(url, images))
    json.dump({"file": fovea_client.__file__, "answers": answers}, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
