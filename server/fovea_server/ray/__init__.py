"""Serves a repository on a Ray cluster. Ray Serve starts, scales and replaces the processes.

`serve run fovea_server.ray:build repository=...` deploys the models, like `fovea ray deploy`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray.serve import Application


def build(args: Mapping[str, Any]) -> Application:
    """Return the Ray application with the models, for `serve run` and `serve deploy`.

    `args` has the same keys as fovea-ray.yaml (docs/how-to/cluster.md).

    Raises:
        InvalidOption: a key or value is invalid. The message contains it.
    """
    from fovea_server.ray.application import Plan
    from fovea_server.ray.config import ClusterConfig

    return Plan.read(ClusterConfig.parse(args)).application()


def build_fronts(args: Mapping[str, Any]) -> Application:
    """Return the Ray application with the fronts.

    A front is the server of a node. It forwards requests to the replicas of models.
    """
    from fovea_server.ray.application import fronts

    return fronts()
