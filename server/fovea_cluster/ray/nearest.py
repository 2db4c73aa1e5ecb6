"""Chooses the ingress that a proxy sends a request to: the one on its own node."""

from __future__ import annotations

import random

from ray.serve.request_router import (
    FIFOMixin,
    LocalityMixin,
    PendingRequest,
    RequestRouter,
    RunningReplica,
)


class NearestRouter(FIFOMixin, LocalityMixin, RequestRouter):
    """Sends requests to the nearest replicas, and to others only where there is none.

    Ray's own router goes to another node as soon as the replica here is slow to tell its queue, so
    a node that dies would end requests that came in at another one: a proxy sends none again.
    """

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """Choose two replicas at random from those on this node, else in this zone, else from all.

        Ray takes the one with the shorter queue. None is chosen while there is no replica.
        """
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True
        ranked = self.rank_replicas_via_locality(candidate_replicas)
        nearest = next(filter(None, ranked), [])
        return [random.sample(nearest, min(2, len(nearest)))]
