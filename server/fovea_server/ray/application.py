"""The applications for Ray Serve: a deployment per model, and Ray fronts that forward requests."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import ray
from ray import serve
from ray._private.state import available_resources_per_node
from ray.serve.config import AutoscalingConfig, AutoscalingContext, AutoscalingPolicy
from ray.serve.handle import DeploymentHandle
from ray.serve.schema import LoggingConfig

from fovea_preprocess.errors import InvalidOption
from fovea_server.ray.config import FRONT, ROSTER, ClusterConfig, ModelOptions
from fovea_server.ray.front import NodeFront
from fovea_server.ray.needs import Needs, read_needs
from fovea_server.ray.policy import Decision, alive_nodes, scale_by_nodes, scale_by_requests
from fovea_server.ray.replica import Replica
from fovea_server.settings import Settings

# Turn off Serve's access log, because Fovea writes its own and clients do not send their requests
# to Serve.
_LOGGING = LoggingConfig(enable_access_log=False)
# Upper limit for the number of nodes in a cluster.
_MAX_NODES = 1000
# Time in seconds for which Serve waits before it stops a removed replica, so that all Ray fronts
# can get the new list.
_LEAVING_S = 2.0


class Roster:
    """The root deployment of the models. Serve passes its metadata to the Ray fronts.

    Args:
        metadata: dict with `id` (ID of the deployment), `at` (time of its creation), `given`
            (settings) and `models` (dict from model names to True if the replicas of the model keep
            state).
        models: handles of the models by name. Serve starts the deployments to which the handles
            belong.
    """

    def __init__(
        self, metadata: Mapping[str, Any], models: Mapping[str, DeploymentHandle[Any]]
    ) -> None:
        self._metadata = dict(metadata)

    def record_replica_metadata(self) -> dict[str, Any]:
        """Return the metadata. Serve passes it to the Ray fronts."""
        return self._metadata


@dataclass(frozen=True)
class Plan:
    """A configuration, and the resources that the models of its repository need."""

    config: ClusterConfig
    given: dict[str, Any]
    settings: Settings
    needs: dict[str, Needs]
    id: str = field(default_factory=lambda: uuid.uuid4().hex)

    @classmethod
    def read(cls, config: ClusterConfig) -> Self:
        """Read the repository, and check that the configuration fits it.

        Raises:
            InvalidOption: the configuration does not fit the repository.
            NotFound, Unavailable, InvalidModel: see `read_needs`.
        """
        given = config.server_settings()
        settings = Settings(**given)
        needs = read_needs(settings)
        config.check_models(needs)
        for name, each in needs.items():
            most = config.options(name).max_replicas
            if each.keeps_state and most > 1:
                raise InvalidOption(
                    f"models.{name}.max_replicas is {most}, but must be 1 for a model with "
                    "sequences, because one replica must receive all requests of a sequence"
                )
        return cls(config, given, settings, needs)

    def resources(self, name: str) -> dict[str, float]:
        """Return the numbers of CPUs and GPUs of a model's replica, under Ray's resource names."""
        options, needs = self.config.options(name), self.needs[name]
        gpus = needs.gpus if options.gpus is None else options.gpus
        return {"CPU": options.cpus or needs.cores, "GPU": gpus}

    def application(self) -> serve.Application:
        """Return the Ray application with the models."""
        replicas = {
            name: self._deployment(name).bind(name, self._replica_settings(name), each.below)
            for name, each in self.needs.items()
        }
        models = {name: each.keeps_state for name, each in self.needs.items()}
        metadata = {"id": self.id, "at": time.time(), "given": self.given, "models": models}
        roster = serve.deployment(
            name=ROSTER, ray_actor_options={"num_cpus": 0}, logging_config=_LOGGING
        )(Roster)
        return roster.bind(metadata, replicas)

    def _replica_settings(self, name: str) -> dict[str, Any]:
        # For an engine on a GPU, the cores are used by threads that decode images.
        cores = int(self.resources(name)["CPU"])
        decoding = self.settings.decode_threads or cores
        return {**self.given, "threads": cores, "decode_threads": decoding}

    def _deployment(self, name: str) -> serve.Deployment:
        resources = self.resources(name)
        return serve.deployment(
            name=name,
            ray_actor_options={"num_cpus": resources["CPU"], "num_gpus": resources["GPU"]},
            **_replicas(self.needs[name], self.config.options(name)),
            **self._common(resources),
        )(Replica)

    def _common(self, resources: Mapping[str, float]) -> dict[str, Any]:
        return {
            "graceful_shutdown_wait_loop_s": _LEAVING_S,
            "graceful_shutdown_timeout_s": self.settings.exit_timeout_secs + 2 * _LEAVING_S,
            "health_check_period_s": 5.0,
            "health_check_timeout_s": 30.0,
            "logging_config": _LOGGING,
            # If a node has room, allow one additional replica during an update, so that old
            # replicas answer until a new one is ready. Otherwise an old replica is stopped first,
            # and requests wait.
            "max_surge_percent": int(has_room(resources)),
        }


def fronts() -> serve.Application:
    """Return the Ray application with the fronts: one on each node.

    A node that joins the cluster later also gets a front.
    """
    front = serve.deployment(
        name=FRONT,
        max_replicas_per_node=1,
        ray_actor_options={"num_cpus": 0},
        autoscaling_config=AutoscalingConfig(
            min_replicas=1,
            initial_replicas=max(1, len(alive_nodes())),
            max_replicas=_MAX_NODES,
            upscale_delay_s=0.0,
            # Use no delay, because Serve would search for ten minutes for another node for the
            # front of a removed node.
            downscale_delay_s=0.0,
            policy=_policy(scale_by_nodes),
        ),
        logging_config=_LOGGING,
        # Stop the old front before a new one starts, because both use the same ports.
        max_surge_percent=0,
    )(NodeFront)
    return front.bind()


def _policy(wanted: Callable[[AutoscalingContext], Decision]) -> AutoscalingPolicy:
    # Pass the policy by its import path, because Serve's controller imports it.
    path = f"{wanted.__module__}:{wanted.__name__}"
    return AutoscalingPolicy(policy_function=path)  # type: ignore[no-untyped-call]


def has_room(resources: Mapping[str, float]) -> bool:
    """Return whether a node has room for another replica of this size now.

    Without a cluster, return True.
    """
    if not ray.is_initialized():
        return True
    # Use an internal function of Ray, because the public API returns only the sum of all nodes.
    return fits(resources, available_resources_per_node().values())  # type: ignore[no-untyped-call]


def fits(resources: Mapping[str, float], nodes: Iterable[Mapping[str, float]]) -> bool:
    """Return whether one of the nodes has all of these resources."""
    return any(all(node.get(of, 0) >= n for of, n in resources.items()) for node in nodes)


def _replicas(needs: Needs, options: ModelOptions) -> dict[str, Any]:
    if options.min_replicas == options.max_replicas:
        return {"num_replicas": options.min_replicas}
    target = options.target_ongoing_requests or 2 * needs.at_once
    return {
        "autoscaling_config": AutoscalingConfig(
            min_replicas=options.min_replicas,
            max_replicas=options.max_replicas,
            target_ongoing_requests=target,
            upscale_delay_s=options.upscale_delay_s,
            downscale_delay_s=options.downscale_delay_s,
            policy=_policy(scale_by_requests),
        )
    }
