"""`fovea health`: the health check of a container."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any

import typer

from fovea_preprocess.errors import InvalidOption, Unavailable
from fovea_server.commands.flags import with_flags
from fovea_server.commands.probe import probe
from fovea_server.commands.serve import SwitchCommand, validated
from fovea_server.commands.triton_flags import translated
from fovea_server.settings import Listening

_SETTINGS = (
    *("allow_http", "http_address", "http_port", "http_restricted_api"),
    *("http_server_cert", "http_server_key"),
    *("allow_grpc", "grpc_address", "grpc_port", "grpc_restricted_protocol"),
    *("grpc_use_ssl", "grpc_use_ssl_mutual", "grpc_server_cert", "grpc_server_key"),
)


class HealthCommand(SwitchCommand):
    """Exits with 1 where others exit with 2: Docker reserves 2 in a HEALTHCHECK."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As usual, but for the exit code."""
        try:
            return super().parse_args(ctx, args)
        except typer.TyperException as error:
            error.exit_code = 1
            raise


@partial(with_flags, settings=_SETTINGS, hidden=())
def health(
    live: Annotated[
        bool, typer.Option("--live", help="Check that the server is running, not that it is ready.")
    ] = False,
    timeout: Annotated[
        float,
        typer.Option(min=0.1, max=3600, metavar="SECONDS", help="Time to wait for the answer."),
    ] = 3.0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
    **given: object,
) -> None:
    """Ask the server on this machine whether it is ready.

    Exits with 1 where it is not, and says why. Reads the same settings as `fovea serve`:
    FOVEA_HTTP_PORT and the others in the environment, and the flags below. Where the server has
    no HTTP, it is asked over gRPC.

    Example: fovea health --live
    """
    try:
        settings = validated(Listening, translated(given))
        found = probe(settings, "live" if live else "ready", timeout)
    except InvalidOption as error:
        raise Unavailable(str(error)) from error
    if as_json:
        typer.echo(json.dumps(asdict(found), indent=2))
    elif found.healthy:
        typer.echo(f"The server at {found.url} is {found.check}.")
    else:
        typer.echo(f"The server at {found.url} is not {found.check}: {found.reason}", err=True)
    if not found.healthy:
        raise typer.Exit(1)
