"""`fovea health`: the health check of a container."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any

import typer

from fovea_server.commands.flags import with_flags
from fovea_server.commands.probe import probe
from fovea_server.commands.serve import SwitchCommand, read_settings

__all__ = ["SwitchCommand", "health"]

_SETTINGS = (
    *("allow_http", "http_address", "http_port", "http_restricted_api"),
    *("http_server_cert", "http_server_key"),
    *("allow_grpc", "grpc_address", "grpc_port", "grpc_restricted_protocol"),
    *("grpc_use_ssl", "grpc_use_ssl_mutual", "grpc_server_cert", "grpc_server_key"),
)
_OFF = "false"


@partial(with_flags, settings=_SETTINGS, hidden=())
def health(
    live: Annotated[
        bool, typer.Option("--live", help="Check that the server is running, not that it is ready.")
    ] = False,
    timeout: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="Time to wait for the answer.")
    ] = 4.0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
    **given: Any,
) -> None:
    """Ask the server on this machine whether it is ready.

    Exits with 1 where it is not, and says why. Reads the same settings as `fovea serve`:
    FOVEA_HTTP_PORT and the others in the environment, and the flags below. Where the server has
    no HTTP, it is asked over gRPC.

    Example: fovea health --live
    """
    # Only one port is checked, so the settings of the others do not count.
    settings = read_settings(None, given | {"allow_grpc": _OFF, "allow_metrics": _OFF})
    if not settings.allow_http:
        settings = read_settings(None, given | {"allow_metrics": _OFF})
    found = probe(settings, "live" if live else "ready", timeout)
    if as_json:
        typer.echo(json.dumps(asdict(found), indent=2))
    elif found.healthy:
        typer.echo(f"The server at {found.url} is {found.check}.")
    else:
        typer.echo(f"The server at {found.url} is not {found.check}: {found.reason}", err=True)
    if not found.healthy:
        raise typer.Exit(1)
