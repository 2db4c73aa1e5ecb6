"""Deploys an application to a cluster that runs, and follows it until it answers."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Iterator, Mapping

import ray
from ray import serve
from ray.exceptions import AuthenticationError
from ray.serve.schema import ApplicationStatus, ApplicationStatusOverview

from fovea_cluster.ray import proxies
from fovea_cluster.ray.application import Plan, fits, nodes
from fovea_cluster.ray.config import ClusterConfig
from fovea_cluster.ray.faults import reason_of
from fovea_preprocess.errors import InvalidOption, Unavailable

NAME = "fovea"
"""The application in Serve."""

_TOKEN = "A cluster with tokens takes RAY_AUTH_MODE=token and its token here, too"
_CONNECT_S = 5.0
_LOOK_S = 0.5
# Looks without a change, after which the user is told where to look, and after which it ends.
_QUIET_LOOKS = 60
_MOST_LOOKS = 1200

Say = Callable[[str], None]


def connect(address: str) -> None:
    """Connect to a cluster; Unavailable where there is none."""
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
            f"no cluster of Ray answers {where}: start one with `ray start --head`, run this on "
            f"one of its nodes, or name it with --address. {_TOKEN}"
        ) from error


def _check_port(address: str) -> None:
    """Raise OSError if nothing listens: Ray itself would wait for minutes."""
    host, colon, port = address.rpartition(":")
    if colon and port.isdecimal() and "://" not in host:
        socket.create_connection((host, int(port)), _CONNECT_S).close()


def deploy(config: ClusterConfig, say: Say) -> list[str]:
    """Deploy, and return the addresses that answer.

    Raises:
        InvalidOption: the configuration does not fit the repository or the cluster.
        Unavailable: a deployment does not start.
    """
    plan = Plan.read(config)
    _check_resources(plan)
    proxies.start(plan.settings)
    target = serve.RunTarget(plan.application(), name=NAME, route_prefix="/")
    serve.run_many([target], wait_for_applications_running=False)
    _follow(say)
    return list(proxies.addresses(plan.settings))


def _follow(say: Say) -> None:
    """Say what changes until the application runs; Unavailable where it fails or stands still."""
    said: dict[str, str] = {}
    looks = 0
    while True:
        found = serve.status().applications.get(NAME)
        if found is not None:
            for name, line in _lines(found):
                if said.get(name) != line:
                    said[name], looks = line, 0
                    say(f"{name}: {line}")
            if found.status == ApplicationStatus.RUNNING:
                return
            if found.status in (ApplicationStatus.DEPLOY_FAILED, ApplicationStatus.UNHEALTHY):
                raise Unavailable(
                    "; ".join(f"{name}: {reason}" for name, reason in _faults(found))
                    or f"the deployment failed: {found.message.strip()}"
                )
        looks += 1
        if looks == _MOST_LOOKS:
            raise Unavailable(
                f"nothing has changed for {_MOST_LOOKS * _LOOK_S / 60:.0f} minutes: see in `ray "
                "status` what the cluster lacks, and in `serve status` what waits for it; Ray goes "
                "on with the deployment once it is there"
            )
        if looks == _QUIET_LOOKS:
            say("Nothing has changed for a while: `ray status` shows what the cluster lacks")
        time.sleep(_LOOK_S)


def _lines(found: ApplicationStatusOverview) -> Iterator[tuple[str, str]]:
    for name, each in sorted(found.deployments.items()):
        states = ", ".join(f"{n} {state.lower()}" for state, n in each.replica_states.items())
        yield name, f"{each.status.value.lower()}; replicas: {states or 'none'}"


def _faults(found: ApplicationStatusOverview) -> Iterator[tuple[str, str]]:
    """Say why deployments fail."""
    for name, each in sorted(found.deployments.items()):
        if each.status.value in ("DEPLOY_FAILED", "UNHEALTHY"):
            yield name, reason_of(name, each)


def _check_resources(plan: Plan) -> None:
    """Raise InvalidOption if no node could ever hold a replica of a model."""
    there = [node["Resources"] for node in nodes()]
    for name in plan.needs:
        asked = plan.resources(name)
        if not fits(asked, there):
            found = "; ".join(_text({of: node.get(of, 0) for of in asked}) for node in there)
            raise InvalidOption(
                f"no node can hold a replica of {name}, which takes {_text(asked)} (the nodes "
                f"have {found}): set models.{name}.cpus or gpus, or add a larger node"
            )


def _text(resources: Mapping[str, float]) -> str:
    return " and ".join(f"{count:g} {of}" for of, count in resources.items() if count) or "nothing"
