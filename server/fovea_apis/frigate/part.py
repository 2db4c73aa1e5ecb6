"""The part of a server that answers Frigate's detectors, where `--api frigate-zmq` asks for it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from fovea_engines.backends.installing import install_extra
from fovea_preprocess.errors import InvalidOption
from fovea_server.dataplane.service import ServerPart, Service

if TYPE_CHECKING:
    from fastapi import APIRouter

    from fovea_apis.frigate.listener import FrigateListener

log = logging.getLogger(__name__)


class FrigatePart(ServerPart):
    """Listens for Frigate.

    Raises:
        InvalidOption: the server cannot listen for Frigate with these settings.
        Unavailable: nor at this address.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._listener: FrigateListener | None = None
        if "frigate-zmq" in service.apis:
            _check(service)

    async def start(self) -> None:
        """Listen."""
        if "frigate-zmq" in self._service.apis:
            from fovea_apis.frigate.listener import FrigateListener

            self._listener = FrigateListener(self._service)
            self._listener.open()

    async def stop(self) -> None:
        """Answer what came, and stop listening."""
        if self._listener is not None:
            await self._listener.close()


def _check(service: Service) -> None:
    settings = service.settings
    try:
        from fovea_apis.frigate.address import check_address, check_free
    except ModuleNotFoundError as error:
        raise InvalidOption(
            "--api frigate-zmq needs packages that are not installed (pip install "
            f"'fovea-serve[frigate]'): {install_extra('frigate')}"
        ) from error
    if service.door is not None or service.http_restrictions.secret("inference") is not None:
        raise InvalidOption(
            "--api frigate-zmq: Frigate sends no key, and this server asks for one: give Frigate a "
            "server of its own, without --keys"
        )
    is_local = check_address(settings.frigate_address)
    check_free(settings)
    if not is_local:
        log.warning(
            "Frigate at %s: other machines may predict there, and Frigate sends no key",
            settings.frigate_address,
        )


def routes(model: str | None) -> APIRouter:
    """Return none, and so make the name known to `--api`."""
    from fastapi import APIRouter

    return APIRouter()
