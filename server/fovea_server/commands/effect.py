"""Flags of `fovea serve` that have no effect beside what the other settings say."""

from __future__ import annotations

from collections.abc import Iterable

import typer

from fovea_preprocess.errors import InvalidOption
from fovea_server.commands.triton_flags import flag
from fovea_server.settings import ModelControlMode, Settings

_TLS_FILES = ("grpc_server_cert", "grpc_server_key", "grpc_root_cert")


def check_effect(settings: Settings, said: Iterable[str]) -> None:
    """Refuse flags that would be ignored where that would surprise, and tell of the others.

    Command lines written for Triton often configure servers that they switch off: those work.

    Args:
        settings: as they are, with what the environment says.
        said: names of the settings that were given as flags.

    Raises:
        InvalidOption: a flag has no effect.
    """
    for name in said:
        needed = _needed(settings, name)
        if needed is None:
            continue
        if name in _TLS_FILES or name.startswith("url_"):
            raise InvalidOption(
                f"{flag(name)} has no effect without {needed}: add it, or leave {flag(name)} out"
            )
        typer.echo(f"{flag(name)}: it has no effect here without {needed}", err=True)


def _needed(settings: Settings, name: str) -> str | None:
    """The flag that would give a flag an effect; None where it has one."""
    if name in _TLS_FILES and not (settings.grpc_use_ssl or settings.grpc_use_ssl_mutual):
        return "--grpc-use-ssl"
    if name == "grpc_root_cert" and not settings.grpc_use_ssl_mutual:
        return "--grpc-use-ssl-mutual"
    if name == "repository_poll_secs" and settings.model_control_mode is not ModelControlMode.POLL:
        return "--model-control-mode=poll"
    switch = f"allow_{name.split('_')[0]}"
    # The address of HTTP is that of the other servers too.
    if name == "http_address" or getattr(settings, switch, True):
        return None
    return flag(switch)
