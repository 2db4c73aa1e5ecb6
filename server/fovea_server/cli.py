"""The `fovea` command."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from fovea_engines.cli import build
from fovea_engines.inspect_cli import inspect
from fovea_engines.layers.cli import diff
from fovea_engines.sensitivity_cli import sensitivity
from fovea_preprocess.errors import FoveaError
from fovea_server.commands.demo import demo
from fovea_server.commands.doctor import doctor
from fovea_server.commands.eval import evaluate
from fovea_server.commands.predict import predict

app = typer.Typer(
    name="fovea",
    epilog="Start with: fovea build MODEL.onnx && fovea serve",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _show_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"fovea {version('fovea-serve')}")
        raise typer.Exit


@app.callback()
def fovea(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Takes an ONNX vision model to a checked, served engine: image in, boxes out."""


@app.command()
def serve(
    model_repository: Annotated[
        Path | None,
        typer.Argument(
            metavar="REPOSITORY",
            help="Folder of models, as `fovea build` makes it.",
            show_default="repository",
        ),
    ] = None,
    http_address: Annotated[
        str | None,
        typer.Option(
            "--host",
            "--http-address",
            help="Address to listen on; 0.0.0.0 for all.",
            show_default="127.0.0.1",
        ),
    ] = None,
    http_port: Annotated[
        int | None, typer.Option("--port", "--http-port", help="HTTP port.", show_default="8000")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(help="Cores to use.", show_default="all it may use")
    ] = None,
    rebuild: Annotated[
        bool | None,
        typer.Option(
            "--rebuild",
            help="Build TensorRT engines again that another TensorRT made, or for another GPU.",
        ),
    ] = None,
    max_queue: Annotated[
        int | None, typer.Option(help="Most images waiting per model.", show_default="256")
    ] = None,
    max_queue_delay_ms: Annotated[
        float | None,
        typer.Option(help="How long a batch that is not full waits for more.", show_default="0"),
    ] = None,
    http_max_input_size: Annotated[
        int | None, typer.Option(help="Largest request body, bytes.", show_default="67108864")
    ] = None,
    allow_client_shm: Annotated[
        bool | None, typer.Option(help="Let clients name shared memory of this machine.")
    ] = None,
    grpc_port: Annotated[int | None, typer.Option(help="gRPC port.", show_default="8001")] = None,
    metrics_port: Annotated[
        int | None, typer.Option(help="Metrics port.", show_default="8002")
    ] = None,
    model_control_mode: Annotated[
        str | None, typer.Option(help="none, poll or explicit.", show_default="none")
    ] = None,
    load_model: Annotated[
        list[str] | None, typer.Option(help="A model to load at start in explicit mode.")
    ] = None,
    cache_config: Annotated[
        str | None, typer.Option(help="local,size=BYTES: the response cache.")
    ] = None,
    allow_url: Annotated[
        bool | None,
        typer.Option("--allow-url", help="Fetch images that requests name by URL."),
    ] = None,
    exit_timeout_secs: Annotated[
        float | None,
        typer.Option(help="Time to finish what was accepted on SIGTERM.", show_default="30"),
    ] = None,
    log_level: Annotated[
        str | None,
        typer.Option(help="debug (with every request), info, warning, error.", show_default="info"),
    ] = None,
) -> None:
    """Serve every model of a repository over HTTP.

    Each setting can also be given in the environment, as FOVEA_ and the option's name in capitals
    (FOVEA_HTTP_PORT for --port); an option wins.

    Example: fovea serve repository --port 8000
    """
    given = {name: value for name, value in locals().items() if value is not None}
    from pydantic import ValidationError

    from fovea_server.listen import bind
    from fovea_server.logs import set_up_logging
    from fovea_server.registry import Registry
    from fovea_server.settings import Settings

    try:
        settings = Settings(**given)
    except ValidationError as error:
        first = error.errors()[0]
        typer.echo(f"error: {'.'.join(map(str, first['loc']))}: {first['msg']}", err=True)
        raise typer.Exit(2) from None
    set_up_logging(settings.log_level)
    registry = Registry(settings)
    listener = bind(settings.http_address, settings.http_port)
    registry.start()
    # Only now: FastAPI takes as long to import as a model to load, and they overlap.
    from fovea_server.serve import make_server

    make_server(settings, registry).run([listener])


app.command()(build)
app.command()(inspect)
app.command()(predict)
app.command("eval")(evaluate)
app.command()(sensitivity)
app.command()(diff)
app.command()(doctor)
app.command()(demo)


def main() -> None:
    """Run the command; errors of ours are a sentence, not a traceback."""
    # As for Ctrl-C: what was begun is cleaned up. `serve` has its own way to stop.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        app()
    except FoveaError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
