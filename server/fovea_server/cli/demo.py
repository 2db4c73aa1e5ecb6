"""`fovea demo`: builds and serves a model, and predicts an image, in one command."""

from __future__ import annotations

import shutil
import socket
import threading
import time
from contextlib import closing
from importlib.resources import as_file, files
from pathlib import Path
from typing import Annotated
from urllib.parse import quote_plus

import typer
from rich.console import Console

from fovea_client import Client, FoveaClientError
from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan
from fovea_engines.heads.metadata import own_task
from fovea_engines.progress import ConsoleProgress
from fovea_preprocess.errors import FoveaError, ModelNotReady, Unavailable
from fovea_server.app import build_app
from fovea_server.listen import bind
from fovea_server.logs import SERVER_LOG, set_up_logging
from fovea_server.models.servable import check_servable
from fovea_server.offline.predictors import ImagePrediction
from fovea_server.offline.result_output import result_table
from fovea_server.serve import make_server
from fovea_server.settings import Settings

_TASKS = ("detect", "segment", "pose", "obb", "classify", "embed", "read")
_MODELS = {"detect": "digits", "read": "plates-read"}
_IMAGES = {"classify": "digit.jpg", "embed": "seven.jpg", "read": "plate.jpg"}
# Texts for the demo of matching images and texts. The training images contain no red seven.
_TEXTS = ("a red seven", "a blue seven", "a red four", "a green two")


def _parse_task(name: str) -> str:
    if (task := own_task(name)) in _TASKS:
        return task
    raise typer.BadParameter(f"{name!r} is not one of {', '.join(map(repr, _TASKS))}")


def demo(
    task: Annotated[
        str,
        typer.Option(
            parser=_parse_task,
            metavar="|".join(_TASKS),
            autocompletion=lambda: list(_TASKS),
            help=(
                "Task of the demo model. detect finds boxes, segment finds masks, pose finds "
                "keypoints, and obb finds rotated boxes. classify recognises a digit, embed "
                "compares an image with texts (requires the extra `clip`), and read reads a "
                "number plate. Names in other tools, such as text-recognition, work too."
            ),
        ),
    ] = "detect",
    folder: Annotated[
        Path,
        typer.Option(
            metavar="DIR",
            help="Folder into which the command writes the engine and the annotated image.",
            file_okay=False,
        ),
    ] = Path("demo-output"),
    host: Annotated[
        str,
        typer.Option(
            help=(
                "IP address on which the HTTP server listens; 0.0.0.0 means all network interfaces."
            )
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(help="TCP port of the HTTP server; 0 means any free port.", min=0, max=65535),
    ] = 8000,
    once: Annotated[
        bool,
        typer.Option(
            "--once",
            help=(
                "Stop the server after the first response. Without this option, the server runs "
                "until Ctrl-C."
            ),
        ),
    ] = False,
) -> None:
    """Build and serve a demo model, and send it an image.

    Each task has its own model. The models find handwritten digits on photographs, or read number
    plates in drawn images.

    Example: fovea demo --task segment --once
    """
    model = _MODELS.get(task, f"digits-{task}")
    scene = folder / _IMAGES.get(task, "scene-1.jpg")
    texts = _TEXTS if task == "embed" else None
    folder.mkdir(parents=True, exist_ok=True)
    listener = bind(host, port)
    url, port = _url(listener), listener.getsockname()[1]
    repository = folder / "repository"
    with as_file(files("fovea_server") / "demo") as assets:
        tokenizer = assets / f"{model}.json" if texts else None
        source = assets / f"{model}.onnx"
        plan = BuildPlan(source, model, repository, tokenizer=tokenizer)
        build(plan, ConsoleProgress(), check_servable)
        shutil.copyfile(assets / scene.name, scene)
    set_up_logging("warning")
    only_http = {"http_address": host, "http_port": port, "allow_grpc": False}
    settings = Settings.from_flags(
        only_http | {"allow_metrics": False, "model_repository": repository}
    )
    app = build_app(settings)
    server, registry = make_server(app), app.registry
    registry.start()

    failed: list[Exception] = []

    def ask() -> None:
        while not (server.started and registry.started):
            time.sleep(0.05)
        try:
            if registry.unserved:
                raise ModelNotReady("; ".join(registry.unserved))
            _show(url, model, scene, texts, serving=not once)
        except (FoveaError, FoveaClientError, OSError) as error:
            failed.append(error)
        if once or failed:
            server.should_exit = True

    threading.Thread(target=ask, daemon=True).start()
    with closing(SERVER_LOG), closing(registry):
        server.run([listener])
    if failed:
        raise Unavailable(f"the demo stopped because a request to its server failed: {failed[0]}")


def _url(listener: socket.socket) -> str:
    """Return the URL at which programs on this machine reach a listener."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _show(
    url: str, model: str, scene: Path, texts: tuple[str, ...] | None, *, serving: bool
) -> None:
    annotated = scene.with_name(f"{model}-annotated.jpg")
    with Client(url) as client:
        prediction = client.predict(model, scene, labels=texts)
        annotated.write_bytes(client.annotate(model, scene, labels=texts))
    console = Console()
    console.print(f"{scene} through {url}", style="bold", highlight=False)
    console.print(result_table(ImagePrediction.of(prediction).result))
    console.print(f"annotated image      {annotated}")
    if not serving:
        return
    console.print(f"try it in a browser  {url}/")
    query = f"?labels={quote_plus(','.join(texts))}" if texts else ""
    console.print(
        f"or in a terminal     curl --data-binary @{scene} {url}/v1/models/{model}/predict{query}",
        soft_wrap=True,
    )
    console.print(f"API documentation    {url}/docs")
    console.print("Serving; Ctrl-C stops it.")
