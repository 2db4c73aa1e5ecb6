"""`fovea demo`: from nothing to boxes on an image, in one command."""

from __future__ import annotations

import shutil
import threading
import time
from contextlib import closing
from importlib.resources import as_file, files
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from fovea_client import Client
from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan
from fovea_engines.progress import ConsoleProgress
from fovea_server.commands.flags import validated
from fovea_server.dataplane.service import Service
from fovea_server.listen import bind
from fovea_server.logs import SERVER_LOG, set_up_logging
from fovea_server.models.registry import Registry
from fovea_server.serve import make_server
from fovea_server.settings import Settings

MODEL = "digits"
SCENE = "scene-1.jpg"


def demo(
    folder: Annotated[
        Path, typer.Option(help="Where the engine and the annotated image go.", file_okay=False)
    ] = Path("demo-output"),
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="HTTP port.", min=0, max=65535)] = 8000,
    once: Annotated[bool, typer.Option("--once", help="Stop after the first answer.")] = False,
) -> None:
    """Build, serve and ask the demo model.

    The demo model finds handwritten digits on photographs; it was trained by the program in
    tools/demo_detector of the source tree.
    """
    listener = bind(host, port)
    folder.mkdir(parents=True, exist_ok=True)
    repository = folder / "repository"
    with as_file(files("fovea_server") / "demo") as assets:
        build(
            BuildPlan(source=assets / "digits.onnx", name=MODEL, repository=repository),
            ConsoleProgress(),
        )
        shutil.copyfile(assets / SCENE, folder / SCENE)
    set_up_logging("warning")
    only_http = {"http_address": host, "http_port": port, "allow_grpc": False}
    settings = validated(
        Settings, only_http | {"allow_metrics": False, "model_repository": repository}
    )
    registry = Registry(settings)
    server = make_server(Service(settings, registry))
    registry.start()

    def ask() -> None:
        while not (server.started and registry.started):
            time.sleep(0.05)
        if not registry.unserved:
            _show(f"http://{host}:{port}", folder, serving=not once)
        if once:
            server.should_exit = True

    threading.Thread(target=ask, daemon=True).start()
    with closing(SERVER_LOG), closing(registry):
        server.run([listener])


def _show(url: str, folder: Path, *, serving: bool) -> None:
    scene = folder / SCENE
    annotated = folder / f"{scene.stem}-annotated.jpg"
    with Client(url) as client:
        prediction = client.predict(MODEL, scene)
        annotated.write_bytes(client.annotate(MODEL, scene))
    table = Table(title=f"{scene} through {url}")
    for column in ("class", "score", "x1", "y1", "x2", "y2"):
        table.add_column(column, justify="right")
    for found in prediction.detections:
        corners = (found.box.x1, found.box.y1, found.box.x2, found.box.y2)
        table.add_row(found.class_name, f"{found.score:.3f}", *(f"{c:.1f}" for c in corners))
    console = Console()
    console.print(table)
    console.print(f"annotated image  {annotated}")
    if not serving:
        return
    console.print(f"API documentation  {url}/docs")
    console.print(
        f"try it             curl --data-binary @{scene} {url}/v1/models/{MODEL}/predict",
        soft_wrap=True,
    )
    console.print("Serving; Ctrl-C stops it.")
