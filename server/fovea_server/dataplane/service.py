"""The objects that all transports share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial

from fovea_engines.device import usable_cores
from fovea_preprocess.entry_points import Group, entry_points, load
from fovea_preprocess.errors import FoveaError, InvalidOption, Unauthenticated
from fovea_server.byte_budget import ByteBudget
from fovea_server.dataplane.apis import parse_apis, routers_of
from fovea_server.dataplane.dataplane import DataPlane
from fovea_server.dataplane.part import ProtocolExtensions
from fovea_server.dataplane.pixel_room import PixelRoom
from fovea_server.dataplane.restrictions import Restrictions
from fovea_server.json_text import JsonThread
from fovea_server.models.registry import Registry
from fovea_server.settings import Settings
from fovea_server.statistics.family import Family
from fovea_server.traffic.call import CALL, Call
from fovea_server.traffic.holder import Door, Holder, Scope
from fovea_server.traffic.spans import Tracer
from fovea_server.traffic.traffic import Traffic

MakeExtensions = Callable[[Settings, Callable[[str], object]], ProtocolExtensions]
"""The ability `extensions`; the second argument raises NotFound where there is no such model."""

# Probes have no keys; and there is nothing behind a method that does not exist.
_OPEN = frozenset(("health", ""))
_FOR_ALL = _OPEN | {"inference"}
_SCOPES: dict[str, Scope] = {"inference": "predict", "metrics": "metrics", "cameras": "cameras"}


class ServerPart:
    """A part that a package adds to a running server: entry points of `fovea.parts` name them.

    A part may have routes, metrics, and work of its own while requests are answered.
    """

    def __init__(self, service: Service) -> None:
        """Take what it needs of the service."""

    def routes(self) -> object:
        """Make its `APIRouter`, which is asked for once; None without routes."""
        return None

    def fronts(self) -> Sequence[object]:
        """Return the `Front`s of requests that need more than an application has of them."""
        return ()

    def families(self) -> Iterable[Family]:
        """Return the metrics."""
        return ()

    async def start(self) -> None:
        """Begin, before the first request."""

    async def stop(self) -> None:
        """End, after the last request."""


class Service:
    """The objects that answer requests over any transport.

    Raises:
        InvalidOption: a setting is invalid.
        Unavailable: a package that adds an API cannot be imported.
    """

    def __init__(self, settings: Settings, registry: Registry) -> None:
        self.settings = settings
        self.apis = parse_apis(settings.api)
        self.api_routers = routers_of(self.apis)
        make: MakeExtensions = load(Group.ABILITIES, "extensions")
        self.extensions = make(settings, registry.find)
        self.budget = ByteBudget(settings.max_held_bytes)
        cores = settings.threads or usable_cores()
        room = PixelRoom(
            self.budget,
            cores=cores,
            most_pixels=int(settings.max_megapixels * 1e6),
        )
        self.plane = DataPlane(registry, self.extensions.trace, room)
        registry.sees = self.sees
        # Drawing keeps the pixels of a whole image, so few are drawn at a time.
        self.drawing = asyncio.Semaphore(2)
        self.json = JsonThread(self.budget)
        self.door = _door(settings)
        self.traffic = Traffic(registry, log_access=settings.log_access, tracer=_tracer(settings))
        self.http_restrictions = Restrictions.parse(
            settings.http_restricted_api, for_all=settings.no_keys
        )
        self.grpc_restrictions = Restrictions.parse(
            settings.grpc_restricted_protocol,
            for_all=settings.no_keys,
            prefix="triton-grpc-protocol-",
            noun="protocol",
        )
        self.parts: list[ServerPart] = [
            load(Group.PARTS, name)(self) for name in entry_points(Group.PARTS)
        ]

    def admit(self, call: Call, api: str, *, operation: str = "", control: str = "") -> None:
        """Let a call use an API, whatever carries it; the log and the metrics learn the purpose.

        Args:
            call: of the request.
            api: name of the API in `restrictions.APIS`, "metrics", or "cameras" for what cameras
                see; "" for none.
            operation: of a call that asks a model to infer, as `Call.operation`.
            control: how the call changes the server, for the log; "" if it does not.

        Raises:
            Restricted: it lacks the secret of the API, or comes from another machine.
            Unauthenticated, Forbidden: it has no key, or one that does not allow this.
        """
        restrictions = self.grpc_restrictions if call.is_rpc else self.http_restrictions
        call.probe = api == "health"
        if operation:
            call.infers(operation)
        if control:
            secret = restrictions.secret(api)
            call.controls(control, None if secret is None else secret[0])
        restrictions.check(api, call.header)
        if self.door is not None and api not in _OPEN:
            needs_control = control or api == "shared-memory"
            scope = "control" if needs_control else _SCOPES.get(api)
            call.again = partial(self._holder, self.door, call, scope)
            holder = call.again()
            holder.check_model(call.model)
            if needs_control and not call.model:
                holder.check_whole()
        elif api == "health" and self.door is not None and call.token is not None:
            # A probe with a key is told more, and one without is answered all the same.
            with suppress(FoveaError):
                call.holder = self.door.holder(call.token)
        elif control or api not in _FOR_ALL:
            restrictions.check_local(api, call.client, call.header)

    def _holder(self, door: Door, call: Call, scope: Scope | None) -> Holder:
        if call.token is None and call.header("authorization"):
            raise Unauthenticated(
                "the header Authorization has no scheme that is known: write Authorization: Bearer "
                "KEY, with the word Bearer, or X-API-Key: KEY without"
            )
        # It is in the log also where it is refused.
        call.holder = holder = door.holder(call.token)
        if scope is not None:
            holder.check_scope(scope)
        return holder

    def sees(self, model: str) -> bool:
        """Return True if the client of the current request may know of a model of this name."""
        if (call := CALL.get()) is None:
            return True
        if call.holder is not None:
            return call.holder.takes(model)
        restrictions = self.grpc_restrictions if call.is_rpc else self.http_restrictions
        return self.door is None and restrictions.lets_all_in(call.client, call.header)

    def close(self) -> None:
        """Log all that was not logged yet, stop following the keys, and release GPUs' memory."""
        self.extensions.close()
        self.traffic.close()
        self.json.close()
        if self.door is not None:
            self.door.close()


def _door(settings: Settings) -> Door | None:
    made = (load(Group.DOORS, name)(settings) for name in entry_points(Group.DOORS))
    door: Door | None = next(filter(None, made), None)
    if door is None and (settings.keys_file is not None or settings.jwt_issuer is not None):
        # A server that should ask for keys never opens without.
        raise InvalidOption(
            "no installed package knows keys, which --keys and --jwt-issuer ask for: install "
            "fovea-serve again"
        )
    return door


def _tracer(settings: Settings) -> Tracer | None:
    if not settings.otel:
        return None
    make: Callable[[float], Tracer] = load(Group.ABILITIES, "tracer")
    return make(settings.otel_ratio)
