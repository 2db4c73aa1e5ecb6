"""Deploys an application to a running cluster, and waits until the cluster serves it."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Iterator, Mapping

import ray
from ray import serve
from ray.exceptions import AuthenticationError, RayError
from ray.serve.config import ProxyLocation
from ray.serve.exceptions import RayServeException
from ray.serve.schema import ApplicationStatus, ApplicationStatusOverview

from fovea_preprocess.errors import InvalidOption, Unavailable
from fovea_server.ray.application import Plan, fits, fronts
from fovea_server.ray.config import FRONT, FRONTS, MODELS, NODE, ClusterConfig
from fovea_server.ray.faults import lasting_failures
from fovea_server.ray.policy import alive_nodes
from fovea_server.settings import Settings

_TOKEN = (
    "If the cluster requires a token, set RAY_AUTH_MODE=token and copy ~/.ray/auth_token to this "
    "machine"
)
_CONNECT_S = 5.0
_LOOK_S = 0.5
# Numbers of checks without progress: after the first number a hint is shown, after the second the
# wait ends.
_QUIET_LOOKS = 60
_MAX_LOOKS = 1200
_FAILED = (ApplicationStatus.DEPLOY_FAILED, ApplicationStatus.UNHEALTHY)
_EVERYWHERE = ("0.0.0.0", "::", NODE)

Show = Callable[[str], None]


def connect(address: str) -> None:
    """Connect to a cluster.

    Raises:
        Unavailable: no cluster answers, or it rejects the token.
    """
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    try:
        _check_port(address)
        ray.init(
            address=address,
            namespace="serve",
            log_to_driver=False,
            logging_level=logging.ERROR,
            configure_logging=False,
        )
    except AuthenticationError as error:
        raise Unavailable(f"{_TOKEN}: {str(error).splitlines()[0]}") from error
    except (OSError, ValueError, RuntimeError) as error:
        where = "on this machine" if address == "auto" else f"at {address}"
        raise Unavailable(
            f"no Ray cluster responds {where}: start one with `ray start --head`, run this "
            f"command on one of its nodes, or give its address with --address. {_TOKEN}"
        ) from error


def _check_port(address: str) -> None:
    """Raise OSError if nothing listens on the port.

    Without this check, Ray would wait for minutes.
    """
    host, colon, port = address.rpartition(":")
    if colon and port.isdecimal() and "://" not in host:
        socket.create_connection((host, int(port)), _CONNECT_S).close()


def deploy(config: ClusterConfig, show: Show) -> list[str]:
    """Deploy the configuration, and return the URLs of the Ray fronts (the servers of the nodes).

    Raises:
        InvalidOption: the configuration does not fit the repository or the cluster.
        NotFound, InvalidModel: the repository cannot be served.
        Unavailable: the repository cannot be read, or a deployment does not start.
    """
    plan = Plan.read(config)
    _check_resources(plan)
    # Ray's own proxies are not needed. If other applications use them, they continue to run.
    serve.start(proxy_location=ProxyLocation.Disabled)
    targets = [serve.RunTarget(plan.application(), name=MODELS, route_prefix=None)]
    before = serve.status().applications.get(FRONTS)
    if before is None or before.status in _FAILED:
        targets.append(serve.RunTarget(fronts(), name=FRONTS, route_prefix=None))
    serve.run_many(targets, wait_for_applications_running=False)
    for name in (MODELS, FRONTS):
        _follow(name, show)
    _wait_for_fronts(plan.id)
    return list(_addresses(plan.settings))


def _follow(application: str, show: Show) -> None:
    """Show changes until an application runs.

    Raises:
        Unavailable: the application fails, or makes no progress.
    """
    shown: dict[str, str] = {}
    looks = 0
    while True:
        found = serve.status().applications.get(application)
        if found is not None:
            for name, line in _lines(found):
                if shown.get(name) != line:
                    shown[name] = line
                    # A failed application changes its status repeatedly, which is not progress.
                    if found.status not in _FAILED:
                        looks = 0
                    show(f"{name}: {line}")
            if found.status == ApplicationStatus.RUNNING:
                return
            if found.status in _FAILED and (reasons := lasting_failures(found)):
                raise Unavailable("; ".join(reasons))
        looks += 1
        if looks == _MAX_LOOKS:
            message = "" if found is None else found.message.strip()
            raise Unavailable(
                f"the deployment made no progress for {_MAX_LOOKS * _LOOK_S / 60:.0f} "
                f"minutes{f' ({message})' if message else ''}: run `ray status` to see missing "
                "resources, and `serve status` to see waiting models; Ray continues the "
                "deployment when resources are free"
            )
        if looks == _QUIET_LOOKS:
            show(
                "The deployment made no progress for a while: run `ray status` to see missing "
                "resources"
            )
        time.sleep(_LOOK_S)


def _wait_for_fronts(deployed: str) -> None:
    """Wait until every Ray front serves the deployment.

    Raises:
        Unavailable: a front reports an error, or the wait takes too long.
    """
    handle = serve.get_deployment_handle(FRONT, FRONTS)
    for _ in range(_MAX_LOOKS):
        try:
            fronts = handle.broadcast("serving").results()
        except (RayError, RayServeException):
            # A front is stopping, or no front runs yet.
            fronts = []
        failed = [each for each in fronts if each["wanted"] == deployed and each["fault"]]
        if failed:
            raise Unavailable("; ".join(f"{each['host']}: {each['fault']}" for each in failed))
        if fronts and all(each["id"] == deployed for each in fronts):
            return
        time.sleep(_LOOK_S)
    raise Unavailable(
        "the front servers of the nodes do not serve the deployment: run `serve status` to see "
        "their state"
    )


def _addresses(settings: Settings) -> Iterator[str]:
    """Yield the URLs of the Ray fronts."""
    hosts = [settings.http_address]
    if settings.http_address in _EVERYWHERE:
        hosts = sorted({node["NodeManagerAddress"] for node in alive_nodes()})
    scheme = "http" if settings.http_server_cert is None else "https"
    for host in hosts:
        near = f"[{host}]" if ":" in host else host
        grpc = f", gRPC at {near}:{settings.grpc_port}" if settings.allow_grpc else ""
        yield f"{scheme}://{near}:{settings.http_port}{grpc}"


def _lines(found: ApplicationStatusOverview) -> Iterator[tuple[str, str]]:
    for name, each in sorted(found.deployments.items()):
        states = ", ".join(f"{n} {state.lower()}" for state, n in each.replica_states.items())
        yield name, f"{each.status.value.lower()}; replicas: {states or 'none'}"


def _check_resources(plan: Plan) -> None:
    """Raise InvalidOption if no node has enough resources for a replica of a model.

    The check uses the total resources of each node, including resources in use.
    """
    there = [node["Resources"] for node in alive_nodes()]
    for name in plan.needs:
        needed = plan.resources(name)
        if not fits(needed, there):
            found = "; ".join(_text({of: node.get(of, 0) for of in needed}) for node in there)
            raise InvalidOption(
                f"a replica of {name} needs {_text(needed)}, but the nodes have {found}: lower "
                f"models.{name}.cpus or gpus, or add a larger node"
            )


def _text(resources: Mapping[str, float]) -> str:
    return " and ".join(f"{count:g} {of}" for of, count in resources.items() if count) or "nothing"
