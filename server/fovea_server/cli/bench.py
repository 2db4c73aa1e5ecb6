"""`fovea bench`: measures how fast a model is served under different loads."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from fovea_engines.repository.repository import (
    DEFAULT_REPOSITORY,
    ModelRepository,
)
from fovea_preprocess.errors import InvalidOption, NotFound, Unavailable
from fovea_server.bench.level import Level, measure_levels
from fovea_server.bench.load import Burst, ClosedLoop, Load, OpenLoop
from fovea_server.bench.payload import MAX_IMAGES, image_payload, tensor_payload
from fovea_server.bench.repository_copy import serve_version
from fovea_server.bench.requests import parse_shapes
from fovea_server.bench.server_process import ServerProcess
from fovea_server.bench.target import Target
from fovea_server.cli.options import (
    AllowCodeOption,
    AsJson,
    PlotOption,
    RepositoryOption,
    ServedModelArgument,
    ServeFlags,
    UrlOption,
    check_options,
    check_plot,
    find_models,
    is_typed,
    model_option,
    parse_clients,
    parse_rates,
)
from fovea_server.models.model_folder import version_folder

_load_option = partial(typer.Option, rich_help_panel="Load")
_request_option = partial(typer.Option, rich_help_panel="Requests")
_INTERRUPTED = 130


def bench(
    context: typer.Context,
    model: ServedModelArgument,
    serve_flags: ServeFlags = None,
    url: UrlOption = None,
    repository: RepositoryOption = DEFAULT_REPOSITORY,
    allow_code: AllowCodeOption = False,
    version: Annotated[
        int | None,
        model_option(
            metavar="N",
            min=1,
            help=(
                "Number of the model version to measure. With --url, the server must have loaded "
                "it."
            ),
            show_default="the current one",
        ),
    ] = None,
    images: Annotated[
        Path | None,
        _request_option(
            metavar="DIR",
            help=(
                f"Folder of images to send, one after another; at most {MAX_IMAGES} images are "
                "used."
            ),
            exists=True,
            file_okay=False,
        ),
    ] = None,
    data: Annotated[
        Path | None,
        _request_option(
            metavar="LABELS",
            help=(
                "Labels of the images in --images, in a format of `fovea eval --data`. At the end "
                "of each load level, the command sends all images once more, to measure the "
                "accuracy under load."
            ),
            exists=True,
        ),
    ] = None,
    tensors: Annotated[
        bool,
        _request_option(
            "--tensors",
            help="Send random tensors instead of images, as binary data over the v2 protocol.",
        ),
    ] = False,
    shape: Annotated[
        list[str] | None,
        _request_option(
            metavar="NAME:DIMS",
            help=(
                "With --tensors: shape of an input with dynamic dimensions, e.g. "
                "images:4,3,640,640. May be repeated."
            ),
        ),
    ] = None,
    clients: Annotated[
        str,
        _load_option(
            metavar="N,N,...",
            help=(
                "Numbers of parallel clients; each number is one load level. A client sends its "
                "next request when it has received a response (closed loop)."
            ),
        ),
    ] = "1,4,16",
    rate: Annotated[
        str | None,
        _load_option(
            metavar="R,R,...",
            help=(
                "Numbers of requests per second; each number is one load level. Requests are sent "
                "at random times (Poisson process) and do not wait for responses (open loop). A "
                "latency begins at the planned time of the request, so it includes delays."
            ),
            show_default="none",
        ),
    ] = None,
    seconds: Annotated[
        float,
        _load_option(
            metavar="SECONDS",
            min=0.1,
            help=(
                "Duration of the measurement at each load level, in seconds. A p99 latency "
                "requires at least 100 responses, and a stable one 1000."
            ),
        ),
    ] = 10.0,
    warmup: Annotated[
        float,
        _load_option(
            metavar="SECONDS",
            min=0,
            help=(
                "Duration of the load before each measurement, in seconds; its responses are not "
                "counted."
            ),
        ),
    ] = 2.0,
    timeout: Annotated[
        float,
        _load_option(
            metavar="SECONDS",
            min=0.001,
            help="Timeout of a request in seconds. A request that takes longer counts as an error.",
        ),
    ] = 30.0,
    plot: PlotOption = None,
    as_json: AsJson = False,
) -> None:
    """Measure the throughput and latency of a model under load.

    The command starts a server, or measures a running server (--url). Another process on this
    machine generates the load. The table shows the CPU usage of this process: if it is near one
    core, the load generator is the limit, not the server.

    The table has a row for each load level, with responses/s, latencies, errors and the time of
    each stage in the server. With --data, it also has the accuracy under load. After Ctrl-C, the
    command shows the results so far.

    Example: fovea bench yolov8n --images val2017 --plot latency.svg

    Example: fovea bench yolov8n --url http://127.0.0.1:8000 --images val2017 --rate 20,50

    Example: fovea bench yolov8n --tensors --clients 8 -- --threads 2
    """
    from fovea_server.cli.bench_tables import LiveLevels, draw, show

    _check(context)
    closed = clients if rate is None or is_typed(context, "clients") else None
    bursts = [Burst(load, seconds, warmup, timeout) for load in _loads(closed, rate)]

    interrupted = False
    levels: list[Level] = []
    with ExitStack() as stack:
        live = stack.enter_context(LiveLevels("requests" if tensors else "images"))
        server = None
        if url is None:
            model, repository, version = _locate(context, stack, repository, model, version)
            live.show_message(f"starting `fovea serve` with {model}")
            flags = [*(serve_flags or ()), *["--allow-code"] * allow_code]
            server = stack.enter_context(ServerProcess(repository, model, flags))
            url = server.url
        target = stack.enter_context(Target(url, model, version))
        payload = (
            image_payload(target, images, data)
            if not tensors
            else tensor_payload(target, parse_shapes(shape or ()))
        )
        engine = target.engine()
        try:
            for levels in measure_levels(bursts, payload, target, server):
                live.show(levels)
        except KeyboardInterrupt:
            interrupted = True
    title = f"{model} version {payload.version}, {f'{engine}, ' * bool(engine)}{target.url}"
    title += payload.judged_on
    if plot is not None and (drawing := draw(title, levels)) is not None:
        plot.write_text(drawing, "utf-8")
    if as_json:
        document = {
            "model": model,
            "version": payload.version,
            "engine": engine,
            "url": target.url,
            "kind": payload.kind,
            "bodies": len(payload.timed),
            "split": payload.split,
            "levels": [level.to_json() for level in levels],
            "interrupted": interrupted,
        }
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
    else:
        show(title, payload.kind, levels)
    if interrupted:
        raise typer.Exit(_INTERRUPTED)
    if not any(level.sample.latencies for level in levels):
        raise Unavailable("all requests failed: see the errors above")


def _locate(
    context: typer.Context, stack: ExitStack, repository: Path, model: str, version: int | None
) -> tuple[str, Path, int | None]:
    """Return the model's name, a repository that serves the version, and the version.

    If the returned version is None, the version that the repository serves is measured.
    """
    [path] = find_models(context, repository, model)
    folder = version_folder(path, version)
    if not folder.name.isdecimal():
        raise NotFound(
            f"{folder} has no built version: build one with `fovea build`, or measure a running "
            "server with --url"
        )
    model, repository = folder.parent.name, folder.parent.parent
    version = int(folder.name) if folder == path.absolute() else version
    if version is not None:
        own = ModelRepository(repository)
        repository = stack.enter_context(serve_version(own, model, version))
    return model, repository, version


def _check(context: typer.Context) -> None:
    """Raise InvalidOption for options that contradict each other or need another option."""
    check_options(
        context,
        needs={"shape": {"tensors": ()}},
        clashes=[
            ("repository", "url"),
            ("allow_code", "url"),
            ("images", "tensors"),
            ("data", "tensors"),
        ],
    )
    given = context.params
    if given["serve_flags"] and given["url"] is not None:
        raise InvalidOption(
            f"{given['serve_flags'][0]} configures a server that bench starts: leave --url out"
        )
    if not (given["images"] or given["data"] or given["tensors"]):
        raise InvalidOption(
            "choose the input: --images DIR, or --tensors for a model that takes tensors"
        )
    check_plot(given["plot"])


def _loads(clients: str | None, rate: str | None) -> list[Load]:
    loads: list[Load] = []
    if clients is not None:
        loads += [ClosedLoop(number) for number in parse_clients(clients)]
    if rate is not None:
        loads += [OpenLoop(each) for each in parse_rates(rate)]
    return loads
