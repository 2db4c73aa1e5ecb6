"""`fovea watch`: runs a model on cameras and videos, in a terminal."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Route

from fovea_engines.repository.repository import DEFAULT_REPOSITORY, ModelRepository
from fovea_preprocess.errors import InvalidOption, ModelNotReady, NotFound
from fovea_preprocess.mistakes import similar_path
from fovea_server.cli.options import AllowCodeOption, ModelFolderArgument, RepositoryOption
from fovea_server.cli.request_options import with_request_options
from fovea_server.dataplane.reach import EVERYWHERE
from fovea_server.streams.cameras.config import StreamConfig
from fovea_server.streams.cameras.picture import MJPEG, NewestPicture, mjpeg
from fovea_server.streams.cameras.stream import CameraStream, SeenFrame, Turns
from fovea_server.streams.events.feed import EventFeed
from fovea_server.streams.events.log import LoggedEvent
from fovea_server.streams.events.sender import Sender
from fovea_server.streams.frames.reader import require_av

if TYPE_CHECKING:
    from fovea_server.dataplane.dataplane import DataPlane

_TABLES_A_SECOND = 4
_LAST_EVENTS_S, _SILENT_S = 10.0, 0.5


def page_server(streams: Sequence[CameraStream], port: int) -> uvicorn.Server:
    """Make the server of the web page; it accepts only requests that name this machine as host."""
    drawing = asyncio.Semaphore(2)
    pictures = [NewestPicture(stream, drawing) for stream in streams]
    figures = "".join(
        f"<figure><img src='/{number}' alt=''><figcaption>{escape(one.config.address.shown)}"
        "</figcaption></figure>"
        for number, one in enumerate(streams)
    )
    style = "body{margin:1em;font:1em sans-serif}img{max-width:100%}figure{margin:0 0 1em}"
    body = f"<!doctype html><title>fovea watch</title><style>{style}</style>{figures}"

    async def page(request: Request) -> Response:
        return HTMLResponse(body)

    async def video(request: Request) -> Response:
        number = request.path_params["number"]
        if number >= len(pictures):
            return Response("there is no such stream", 404)
        return StreamingResponse(mjpeg(pictures[number]), media_type=MJPEG)

    app = Starlette(
        routes=[Route("/", page), Route("/{number:int}", video)],
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost"])],
    )
    return uvicorn.Server(
        uvicorn.Config(
            app,
            port=port,
            log_config=None,
            ws="none",
            lifespan="off",
            timeout_graceful_shutdown=1,
        )
    )


@with_request_options("conf", "classes", "track", "track_high", "track_new", "min_frames")
def watch(
    model: ModelFolderArgument,
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE",
            help=(
                "Cameras and videos: a URL (rtsp:// or rtsps://; http:// or https:// for MJPEG), "
                "a video file, or a device such as /dev/video0 or 0."
            ),
        ),
    ],
    repository: RepositoryOption = DEFAULT_REPOSITORY,
    allow_code: AllowCodeOption = False,
    every: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help=(
                "Time between two processed frames, e.g. 200ms or 2s. By default, the command "
                "processes as many frames as the model can."
            ),
        ),
    ] = None,
    fps: Annotated[
        float | None,
        typer.Option(
            metavar="N", help="Number of frames to process per second, instead of --every."
        ),
    ] = None,
    *,
    transport: Annotated[
        Literal["tcp", "udp"], typer.Option(help="Transport protocol for RTSP cameras.")
    ] = "tcp",
    line: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=X,Y,X,Y",
            help=(
                "Count objects that cross the line between two points. Coordinates are fractions "
                "of the image (0 to 1), or pixels. Look from the first point to the second: a "
                "crossing from right to left counts as 'in', the other direction as 'out'. Append "
                "':classes=person,car' to count only these classes, and ':anchor=center' to use "
                "the centre of a box as its position instead of the middle of its lower edge. "
                "Enables --track bytetrack. A crossing counts when the object has been on the "
                "other side for 300 ms. May be repeated."
            ),
        ),
    ] = None,
    zone: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=X,Y,...",
            help=(
                "Count objects in the zone with these three or more corners. Coordinates and "
                "appended options are the same as for --line. Also append ':after=30s' to count "
                "only objects that stay for 30 s or longer. Enables --track bytetrack. May be "
                "repeated."
            ),
        ),
    ] = None,
    event: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND",
            help=(
                "Kind of events to report: appeared, lost, crossed, entered, left or count. May "
                "be repeated."
            ),
            show_default="all",
        ),
    ] = None,
    webhook: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="URL to which the command sends each event as JSON, in a POST request.",
        ),
    ] = None,
    mqtt: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help=(
                "URL of an MQTT broker to which the command publishes events and counts: "
                "mqtt://user:password@host:1883/prefix. Home Assistant discovers them "
                "automatically."
            ),
        ),
    ] = None,
    show: Annotated[
        int | None,
        typer.Option(
            metavar="PORT",
            min=1,
            max=65535,
            help="Show the annotated streams on a web page at http://127.0.0.1:PORT.",
        ),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help=(
                "Print one line of JSON per frame instead of a table. With events (e.g. --line or "
                "--zone), print one line per event."
            ),
        ),
    ] = False,
    **given: Any,
) -> None:
    """Run a model on cameras and live streams.

    If the model is slower than a camera, it skips frames and processes the newest frame, so the
    results have no growing delay. No frame of a file is skipped. If the connection to a camera
    fails, the command connects again. Ctrl-C ends the command.

    Example: fovea watch yolov8n rtsp://user:password@camera/stream --every 200ms --track bytetrack

    Example: fovea watch yolov8n street.mp4 0 --show 8090

    Example: fovea watch yolov8n rtsp://camera/stream --json >> seen.jsonl

    Example: fovea watch yolov8n rtsp://camera/stream --line door=0.1,0.6,0.9,0.6:classes=person
    """
    require_av()
    path = ModelRepository(repository).path_of(model)
    if path.name.isdigit():
        raise InvalidOption(
            f"{model} is a version, but watch uses the current version of a model: give the model"
        )
    given |= {
        "model": path.name,
        **{"every": every, "fps": fps, "transport": transport},
        **{"lines": line, "zones": zone, "events": event, "webhook": webhook, "mqtt": mqtt},
    }
    given = {key: value for key, value in given.items() if value is not None}
    configs = [
        StreamConfig.parse(f"source{number}", {**given, "source": source})
        for number, source in enumerate(sources, 1)
    ]
    if all(
        each.address.kind == "file" and not Path(each.address.text).exists() for each in configs
    ):
        meant = similar_path(Path(sources[0])) or (
            ": give a video file, a device such as 0 or /dev/video0, or a URL (rtsp, http)"
        )
        raise NotFound(f"{sources[0]} does not exist{meant}")
    if show is not None:
        _check_free(show)
    with (
        TemporaryDirectory() as folder,
        _load_model(path.parent, path.name, allow_code=allow_code) as plane,
    ):
        for config in configs:
            config.check(plane.models)
        turns = Turns(plane.models)
        streams = [
            CameraStream(each, plane, turns, reach=EVERYWHERE, feed=_feed(each, Path(folder)))
            for each in configs
        ]
        with suppress(KeyboardInterrupt):
            asyncio.run(_watch(streams, as_json, show))
    if not as_json:
        _print(streams)
    lacking = [sender.lacks for sender in _senders(streams) if sender.lacks]
    for each in lacking:
        typer.echo(f"error: not delivered: {each}", err=True)
    if lacking or any(stream.state[0] in ("failed", "refused") for stream in streams):
        raise typer.Exit(1)


def _check_free(port: int) -> None:
    """Raise InvalidOption if another program uses the port for the web page."""
    try:
        with socket.create_server(("127.0.0.1", port)):
            return
    except OSError as error:
        why = os.strerror(error.errno or 0)
        raise InvalidOption(
            f"--show {port} is not available ({why}): choose another port"
        ) from None


def _feed(config: StreamConfig, folder: Path) -> EventFeed | None:
    events = config.events
    return None if events is None else EventFeed(config.id, events, folder / config.id)


@contextmanager
def _load_model(repository: Path, model: str, *, allow_code: bool) -> Iterator[DataPlane]:
    """Load a model as a server does, and yield the data plane, which predicts with the model."""
    from fovea_server.app import build_app
    from fovea_server.settings import ModelControlMode, Settings

    settings = Settings(
        model_repository=(repository,),
        model_control_mode=ModelControlMode.EXPLICIT,
        load_model=(model,),
        allow_code=allow_code,
    )
    app = build_app(settings)
    app.registry.start()
    with closing(app):
        while not app.registry.started:
            time.sleep(0.02)
        if failed := app.registry.unserved:
            raise ModelNotReady("; ".join(failed))
        yield app.service.plane


async def _watch(streams: Sequence[CameraStream], as_json: bool, port: int | None) -> None:
    running = [asyncio.create_task(stream.run()) for stream in streams]
    output = asyncio.create_task(_lines(streams) if as_json else _table(streams))
    page = None
    if port is not None:
        from fovea_server.cli.watch import page_server

        page = asyncio.create_task(page_server(streams, port).serve())
        typer.echo(f"open http://127.0.0.1:{port} to see the images", err=True)
    over = asyncio.create_task(_all(running))
    try:
        ends = {over, output} if page is None else {over, output, page}
        done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        rest = [*running, over, *([page] if page else [])]
        for task in rest:
            task.cancel()
        await asyncio.wait(rest)
        try:
            await _wait_until_delivered(streams)
        finally:
            output.cancel()
            await asyncio.wait([output])
            await asyncio.gather(*(stream.feed.stop() for stream in streams if stream.feed))


async def _wait_until_delivered(streams: Sequence[CameraStream]) -> None:
    """Wait until pending events are delivered, as long as their receivers accept events."""
    for stream in streams:
        if stream.feed is not None:
            stream.feed.over()
    senders = _senders(streams)
    for sender in senders:
        sender.hurry()
    left, until, notified = -1, 0.0, False
    began = time.monotonic()
    while waiting := sum(sender.waiting for sender in senders):
        now = time.monotonic()
        if waiting != left:
            left, until = waiting, now + _LAST_EVENTS_S
        if now > until:
            break
        if not notified and now - began > _SILENT_S:
            notified = True
            lacks = "; ".join(sender.lacks for sender in senders if sender.lacks)
            typer.echo(f"waiting to deliver {lacks} (stop with Ctrl-C)", err=True)
        await asyncio.sleep(0.02)


def _senders(streams: Sequence[CameraStream]) -> list[Sender]:
    feeds = [stream.feed for stream in streams if stream.feed is not None]
    return [sender for feed in feeds for sender in feed.senders.values()]


async def _all(tasks: Sequence[asyncio.Task[None]]) -> None:
    await asyncio.gather(*tasks)


async def _lines(streams: Sequence[CameraStream]) -> None:
    closed = asyncio.get_running_loop().create_future()

    def write(record: SeenFrame | LoggedEvent) -> None:
        try:
            sys.stdout.write(record.text.decode() + "\n")
            sys.stdout.flush()
        except OSError as error:
            # The reader of the pipe has closed it, for example `| head`. The frame is not the cause
            # of this error, so the error ends the command.
            if not closed.done():
                closed.set_exception(error)

    for stream in streams:
        if stream.feed is not None:
            stream.feed.listeners.append(write)
        else:
            stream.subscribers.append(write)
    await closed


async def _table(streams: Sequence[CameraStream]) -> None:
    from rich.console import Console
    from rich.live import Live

    # The table shows the states of the streams, so the log records of the streams are not printed.
    log = logging.getLogger("fovea_server.streams")
    log.propagate = False
    log.addHandler(logging.NullHandler())
    console = Console(stderr=True)
    if not console.is_terminal:
        await _changes(streams)
    with Live(console=console, transient=True, auto_refresh=False) as live:
        while True:
            live.update(_rows(streams), refresh=True)
            await asyncio.sleep(1 / _TABLES_A_SECOND)


async def _changes(streams: Sequence[CameraStream]) -> None:
    """If there is no terminal for a table, write a line for each change of a stream's state."""
    shown: dict[str, str] = {}
    while True:
        for stream in streams:
            state = _state(stream)
            if shown.get(stream.config.id) != state:
                shown[stream.config.id] = state
                typer.echo(f"{stream.config.address.shown}: {state}", err=True)
        await asyncio.sleep(1 / _TABLES_A_SECOND)


def _state(stream: CameraStream) -> str:
    state, reason = stream.state
    senders = {} if stream.feed is None else stream.feed.senders
    faults = [f"{name}: {one.reason}" for name, one in senders.items() if one.reason]
    return "; ".join([f"{state}: {reason}" if reason else state, *faults])


def _rows(streams: Sequence[CameraStream]) -> Any:
    from rich.table import Table

    table = Table()
    for title in ("source", "state", "frames/s", "age ms", "frames", "dropped", "objects"):
        table.add_column(title, justify="left" if title in ("source", "state") else "right")
    for stream in streams:
        seen = stream.document
        age = "" if seen["age_ms"] is None else f"{seen['age_ms']:.0f}"
        frames = seen["frames"]
        table.add_row(
            seen["source"],
            _state(stream),
            f"{seen['rate']:.1f}",
            age,
            str(frames["answered"]),
            str(frames["dropped"]),
            str(seen["objects"]),
        )
        for name, counts in seen.get("counts", {}).items():
            table.add_row(f"  {name}", ", ".join(f"{key} {count}" for key, count in counts.items()))
    return table


def _print(streams: Sequence[CameraStream]) -> None:
    from rich.console import Console

    Console().print(_rows(streams))
