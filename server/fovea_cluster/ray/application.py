"""The application: a deployment for each model, and the ingress before them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any, Self

import ray
from ray import serve
from ray._private.state import available_resources_per_node
from ray.serve.config import AutoscalingConfig, BackpressureConfig, RequestRouterConfig
from ray.serve.schema import LoggingConfig

from fovea_cluster.ray.config import ClusterConfig, ModelOptions
from fovea_cluster.ray.ingress import Ingress
from fovea_cluster.ray.nearest import NearestRouter
from fovea_cluster.ray.needs import Needs, read_needs
from fovea_cluster.ray.replica import Replica
from fovea_preprocess.errors import InvalidOption
from fovea_server.settings import Settings

INGRESS = "@ingress"
"""No model can have this name."""

# Requests of one ingress: the bytes that they hold are bounded by max_held_mb.
_MOST_CALLS = 4096


@dataclass(frozen=True)
class Plan:
    """The configuration, and what the models of its repository need."""

    config: ClusterConfig
    given: dict[str, Any]
    settings: Settings
    needs: dict[str, Needs]

    @classmethod
    def read(cls, config: ClusterConfig) -> Self:
        """Read the repository.

        Raises:
            InvalidOption: the configuration does not fit the repository.
            NotFound, Unavailable, InvalidModel: as `read_needs`.
        """
        given = config.server_settings()
        settings = Settings(**given)
        needs = read_needs(settings)
        config.check_models(needs)
        for name, each in needs.items():
            most = config.options(name).max_replicas
            if each.keeps_state and most > 1:
                raise InvalidOption(
                    f"models.{name}.max_replicas is {most}: requests of one sequence must meet the "
                    "same replica, so a model with sequences has one; set it to 1"
                )
        return cls(config, given, settings, needs)

    def resources(self, name: str) -> dict[str, float]:
        """Return the CPUs and GPUs that a replica of a model takes, as Ray calls them."""
        options, needs = self.config.options(name), self.needs[name]
        gpus = needs.gpus if options.gpus is None else options.gpus
        return {"CPU": options.cpus or needs.cores, "GPU": gpus}

    def application(self) -> serve.Application:
        """Build the application."""
        replicas = {
            name: self._deployment(name).bind(name, self._given(name), each.below)
            for name, each in self.needs.items()
        }
        stateful = tuple(name for name, each in self.needs.items() if each.keeps_state)
        there = max(1, len(nodes()))
        replicated = self.config.ingress_replicas or there
        ingress = serve.deployment(
            name=INGRESS,
            num_replicas=replicated,
            max_ongoing_requests=_MOST_CALLS,
            max_queued_requests=_MOST_CALLS,
            backpressure_config=BackpressureConfig(status_code=429, retry_after_s=1.0),
            ray_actor_options={"num_cpus": 0},
            request_router_config=RequestRouterConfig(
                request_router_class=NearestRouter  # type: ignore[arg-type]  # Ray's are wrong
            ),
            **(self._common({}) | _spread(replicated, there)),
        )(serve.ingress()(Ingress))
        return ingress.bind(self.given, replicas, stateful)

    def _given(self, name: str) -> dict[str, Any]:
        # Of a GPU's engine they are the threads that decode.
        cores = int(self.resources(name)["CPU"])
        decoding = self.settings.decode_threads or cores
        return {**self.given, "threads": cores, "decode_threads": decoding}

    def _deployment(self, name: str) -> serve.Deployment:
        resources = self.resources(name)
        return serve.deployment(
            name=name,
            max_ongoing_requests=self.settings.max_queue,
            max_queued_requests=self.settings.max_queue,
            ray_actor_options={"num_cpus": resources["CPU"], "num_gpus": resources["GPU"]},
            **_replicas(self.needs[name], self.config.options(name)),
            **self._common(resources),
        )(Replica)

    def _common(self, resources: Mapping[str, float]) -> dict[str, Any]:
        return {
            "graceful_shutdown_timeout_s": self.settings.exit_timeout_secs,
            "health_check_period_s": 5.0,
            "health_check_timeout_s": 30.0,
            # Ray's proxies log every request already.
            "logging_config": LoggingConfig(enable_access_log=False),
            # One more than there should be: the old ones answer until it is ready. Where there is
            # no room for it, requests wait until it is.
            "max_surge_percent": int(has_room(resources)),
        }


def _spread(replicas: int, nodes: int) -> dict[str, Any]:
    """Make Ray spread the ingresses evenly over the nodes; by itself it puts several on one.

    A node then has no room for a second ingress during an update, so the old one stops first, and
    the proxy asks that of another node. A single node needs none of this.
    """
    if nodes == 1:
        return {}
    return {"max_replicas_per_node": ceil(replicas / nodes), "max_surge_percent": 0}


def nodes() -> list[dict[str, Any]]:
    """List the nodes of the cluster, as Ray describes them; none where it is not connected."""
    if not ray.is_initialized():
        return []
    return [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]


def has_room(resources: Mapping[str, float]) -> bool:
    """Return False if no node could hold one more replica of this size now."""
    if not ray.is_initialized():
        return True
    # Ray's public API has only the sum of all nodes.
    return fits(resources, available_resources_per_node().values())  # type: ignore[no-untyped-call]


def fits(resources: Mapping[str, float], nodes: Iterable[Mapping[str, float]]) -> bool:
    """Return True if one of the nodes has all of these resources."""
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
        )
    }
