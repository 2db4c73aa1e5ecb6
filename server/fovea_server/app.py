"""Creates all objects of a running server, in order, and passes the needed objects to each.

The signature of each constructor lists all objects that it can use. Imports inside functions belong
to features that the operator must enable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fovea_engines.backends.installing import install_extra
from fovea_engines.device import usable_cores
from fovea_preprocess.errors import InvalidOption
from fovea_server.auth.authenticator import Authenticator
from fovea_server.byte_budget import ByteBudget
from fovea_server.dataplane.canaries import Canaries
from fovea_server.dataplane.dataplane import DataPlane, Observer
from fovea_server.dataplane.decode_limiter import DecodeLimiter
from fovea_server.dataplane.extensions import Extensions
from fovea_server.dataplane.models import Models
from fovea_server.dataplane.reach import Reach
from fovea_server.dataplane.service import Service
from fovea_server.dataplane.tiles import Tiles
from fovea_server.feature import Feature
from fovea_server.http.v1.keys import KeyRoute
from fovea_server.http.v1.sources import ImageSources
from fovea_server.integrations.registry import open_integration, parse_apis
from fovea_server.json_text import JsonThread
from fovea_server.models.opening import image_limits
from fovea_server.models.registry import Registry
from fovea_server.monitoring.drift import Drift
from fovea_server.rollout.promoter import Promoter
from fovea_server.rollout.shadows import Shadows
from fovea_server.search.embedding import Texts
from fovea_server.search.feature import Search
from fovea_server.settings import Settings
from fovea_server.streams.feature import Streams
from fovea_server.tracking.tracks import Tracks
from fovea_server.traffic.traffic import Traffic
from fovea_server.ui.feature import Page

if TYPE_CHECKING:
    from fovea_server.auth.key_authenticator import KeyAuthenticator
    from fovea_server.dataplane.fetch import Fetcher
    from fovea_server.monitoring.capturer import Capture
    from fovea_server.observability.otel import OtelTracer


@dataclass(frozen=True, slots=True, eq=False)
class App:
    """The objects of a running server.

    Attributes:
        registry: models of the server. The server must start the registry.
        service: answers requests over any transport.
        sources: fetches the images that requests name by URL.
        features: additional routes, metrics and background work.
    """

    registry: Registry
    service: Service
    sources: ImageSources
    features: Sequence[Feature]

    def close(self) -> None:
        """Unload the models and close the service.

        Models that a server has already unloaded at its exit stay as they are.
        """
        self.registry.close()
        self.service.close()


def build_app(
    settings: Settings, *, only: Collection[str] | None = None, described: bool = False
) -> App:
    """Create the objects of a server. Models are not loaded yet.

    Args:
        settings: settings of the server.
        only: names of the models that this server may load; None for all models
            of the repositories.
        described: True to open no engines. The server then describes its models, but cannot run
            them.

    Raises:
        InvalidOption: a setting is invalid, or needs packages that are not installed.
        NotFound: a model repository does not exist.
        Unavailable: a model repository cannot be reached.
    """
    apis = parse_apis(settings.api)
    authenticator = Authenticator(settings, _open_keys(settings))
    registry = Registry(settings, authenticator.sees, only=only, described=described)
    models = Models(registry)
    extensions = Extensions(settings, registry.find)
    traffic = Traffic(registry, log_access=settings.log_access, tracer=_open_tracer(settings))

    budget = ByteBudget(settings.max_inflight_bytes)
    cores, most_pixels = settings.threads or usable_cores(), int(settings.max_megapixels * 1e6)
    decode_limiter = DecodeLimiter(budget, cores=cores, most_pixels=most_pixels)
    tiles = Tiles(image_limits(settings))

    canaries, tracks = Canaries(), Tracks(settings.track_idle_s)
    drift, shadows, capture = Drift(models), Shadows(models, settings), _capture(settings, models)
    observers: list[Observer] = [drift, shadows, *capture]
    plane = DataPlane(models, extensions.trace, decode_limiter, tiles, tracks, canaries, observers)

    service = Service(
        settings=settings,
        apis=apis,
        authenticator=authenticator,
        models=models,
        plane=plane,
        extensions=extensions,
        traffic=traffic,
        budget=budget,
        json=JsonThread(budget),
        drawing=asyncio.Semaphore(2),
    )
    features: list[Feature] = [
        KeyRoute(),
        Promoter(models, canaries, shadows),
        drift,
        shadows,
        *capture,
        *([Page()] if settings.page else []),
        Search(),
        Streams(service, tracks),
        Texts(models),
        *(open_integration(name, service) for name in apis),
    ]
    sources = ImageSources(settings.http_max_input_size, _open_fetcher(settings))
    return App(registry, service, sources, features)


def _open_keys(settings: Settings) -> KeyAuthenticator | None:
    if settings.keys_file is None and settings.jwt_issuer is None:
        return None
    from fovea_server.auth.key_authenticator import KeyAuthenticator

    files = settings.keys_file, settings.quota_file
    if settings.jwt_issuer is None:
        return KeyAuthenticator(*files)
    if settings.jwt_audience is None:
        raise InvalidOption(
            "--jwt-issuer needs --jwt-audience: without it, the server would accept tokens for "
            "other services"
        )
    try:
        from fovea_server.auth.provider import Provider
    except ModuleNotFoundError as error:
        raise _not_installed("--jwt-issuer", "oidc", error) from error
    issuer = settings.jwt_issuer, settings.jwt_audience, settings.jwt_scope_claim
    return KeyAuthenticator(*files, Provider(*issuer))


def _open_tracer(settings: Settings) -> OtelTracer | None:
    if not settings.otel:
        return None
    try:
        from fovea_server.observability.otel import OtelTracer
    except ModuleNotFoundError as error:
        raise _not_installed("--otel", "otel", error) from error
    return OtelTracer(settings.otel_ratio)


def _open_fetcher(settings: Settings) -> Fetcher | None:
    if not settings.allow_url:
        return None
    from fovea_server.dataplane.fetch import Fetcher

    return Fetcher(
        max_bytes=settings.max_image_bytes,
        timeout_s=settings.url_timeout_s,
        reach=Reach.of(settings),
    )


def _capture(settings: Settings, models: Models) -> list[Capture]:
    if settings.capture is None:
        return []
    from fovea_server.models.config.capture_rules import parse_rule
    from fovea_server.monitoring.capturer import Capture
    from fovea_server.monitoring.captures import CaptureStore

    for text in settings.capture_rule:
        parse_rule(text)
    most = int(settings.capture_max_gb * 2**30)
    store = CaptureStore(settings.capture, most, settings.capture_days)
    return [Capture(models, store, settings.capture_rule)]


def _not_installed(option: str, extra: str, error: ModuleNotFoundError) -> InvalidOption:
    return InvalidOption(
        f"{option} needs packages that are not installed ({error.name}): {install_extra(extra)}, "
        f"or leave {option} out"
    )
