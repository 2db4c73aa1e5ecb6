"""Ray's proxies: the addresses that they listen at, which stay until Serve is shut down."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ray
from ray import serve
from ray.serve.config import HTTPOptions, ProxyLocation, gRPCOptions

from fovea_cluster.ray.application import nodes
from fovea_cluster.ray.service import ADD_TO_SERVER
from fovea_preprocess.errors import InvalidOption
from fovea_server.settings import Settings

# serve.status() says nothing of addresses; the actor that knows them has these names in Ray.
_CONTROLLER, _NAMESPACE = "SERVE_CONTROLLER_ACTOR", "serve"
_EVERYWHERE = ("0.0.0.0", "::")


def start(settings: Settings) -> None:
    """Start the proxies; InvalidOption where they run and listen elsewhere."""
    controller = _controller()
    if controller is None:
        serve.start(
            proxy_location=ProxyLocation.EveryNode,
            http_options=HTTPOptions(host=settings.http_address, port=settings.http_port),
            grpc_options=gRPCOptions(
                port=settings.grpc_port,
                grpc_servicer_functions=[ADD_TO_SERVER] if settings.allow_grpc else [],
            ),
        )
        return
    # Ray ignores the options of a second start.
    http = ray.get(controller.get_http_config.remote())
    check_same(settings, http, ray.get(controller.get_grpc_config.remote()))


def _controller() -> Any | None:
    try:
        return ray.get_actor(_CONTROLLER, _NAMESPACE)
    except ValueError:
        return None


def check_same(settings: Settings, http: HTTPOptions, grpc: gRPCOptions) -> None:
    """Raise InvalidOption if the settings name other addresses than those of running proxies."""
    has_grpc = ADD_TO_SERVER in grpc.grpc_servicer_functions
    there: dict[str, object] = {
        "http_address": http.host,
        "http_port": http.port,
        "allow_grpc": has_grpc,
        **({"grpc_port": grpc.port} if has_grpc else {}),
    }
    asked = {name: getattr(settings, name) for name in there}
    if asked != there:
        raise InvalidOption(
            f"Serve runs already with {_text(there)}, and its proxies cannot change to "
            f"{_text({name: asked[name] for name in there if asked[name] != there[name]})}: keep "
            "these settings, or end Serve with `serve shutdown` first, which stops all that it "
            "serves"
        )


def _text(options: dict[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in options.items())


def addresses(settings: Settings) -> Iterator[str]:
    """Name the addresses that answer."""
    hosts = [settings.http_address]
    if settings.http_address in _EVERYWHERE:
        hosts = sorted({node["NodeManagerAddress"] for node in nodes()})
    for host in hosts:
        near = f"[{host}]" if ":" in host else host
        grpc = f", gRPC at {near}:{settings.grpc_port}" if settings.allow_grpc else ""
        yield f"http://{near}:{settings.http_port}{grpc}"
