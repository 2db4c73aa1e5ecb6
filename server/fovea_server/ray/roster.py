"""The roster: what is deployed, as the fronts learn it from Serve's controller."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ray.serve.handle import DeploymentHandle


class Roster:
    """The deployment at the root of the application of models.

    Args:
        told: `id` of the deployment and the time `at` which it was made, the settings `given`, and
            by the name of each of the `models` whether its replicas keep state.
        models: Serve starts what is named here.
    """

    def __init__(
        self, told: Mapping[str, Any], models: Mapping[str, DeploymentHandle[Any]]
    ) -> None:
        self._told = dict(told)

    def record_replica_metadata(self) -> dict[str, Any]:
        """Tell the fronts."""
        return self._told
