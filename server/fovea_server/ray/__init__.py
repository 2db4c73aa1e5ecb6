"""Serves a repository on a cluster of Ray: Serve starts, scales and replaces the processes.

`serve run fovea_server.ray:build repository=...` deploys it, as `fovea ray deploy` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray.serve import Application


def build(args: Mapping[str, Any]) -> Application:
    """Build the application of a configuration, for `serve run` and `serve deploy`.

    The keys are those of fovea-ray.yaml (docs/how-to/cluster.md). InvalidOption names a wrong one.
    """
    from fovea_server.ray.application import Plan
    from fovea_server.ray.config import ClusterConfig

    return Plan.read(ClusterConfig.parse(args)).application()


def build_fronts(args: Mapping[str, Any]) -> Application:
    """Build the application of the fronts, which serve what the other one deploys."""
    from fovea_server.ray.application import fronts

    return fronts()
