"""Joins keys to a server: its door, and the route that tells a client of its key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fovea_engines.backends.installing import install_extra
from fovea_preprocess.errors import InvalidOption
from fovea_server.dataplane.service import ServerPart
from fovea_server.settings import Settings

if TYPE_CHECKING:
    from fastapi import APIRouter

    from fovea_keys.door import KeyDoor


def door(settings: Settings) -> KeyDoor | None:
    """Make the door of a server; None where it asks for no keys."""
    if settings.keys_file is None and settings.jwt_issuer is None:
        return None
    # Its import costs more than a server without keys should pay.
    from fovea_keys.door import KeyDoor

    files = settings.keys_file, settings.quota_file
    if settings.jwt_issuer is None:
        return KeyDoor(*files)
    if settings.jwt_audience is None:
        raise InvalidOption(
            "--jwt-issuer needs --jwt-audience: without it, tokens for other services would open "
            "this one"
        )
    try:
        from fovea_keys.provider import Provider
    except ModuleNotFoundError as error:
        raise InvalidOption(
            f"--jwt-issuer needs packages that are not installed ({error.name}): "
            f"{install_extra('oidc')}, or leave --jwt-issuer out"
        ) from error
    issuer = settings.jwt_issuer, settings.jwt_audience, settings.jwt_scope_claim
    return KeyDoor(*files, Provider(*issuer))


class KeysPart(ServerPart):
    """The route of keys."""

    def routes(self) -> APIRouter:
        """Make the route."""
        from fovea_keys.routes import router

        return router
