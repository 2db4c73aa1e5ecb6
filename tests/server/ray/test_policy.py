"""The policies by which Serve chooses the number of replicas."""

from types import SimpleNamespace

import pytest

pytest.importorskip("ray")
from ray.serve.config import AutoscalingConfig

from fovea_server.ray.application import fits
from fovea_server.ray.policy import UNDER_WAY, scale_by_requests

pytestmark = pytest.mark.cluster


def wanted(*under_way: float, target: float = 2.0, running: int = 1) -> float:
    told = {UNDER_WAY: dict(enumerate(under_way))} if under_way else {}
    config = AutoscalingConfig(target_ongoing_requests=target, max_replicas=8)
    given = {"aggregated_metrics": told, "target_num_replicas": running, "config": config}
    return scale_by_requests(SimpleNamespace(**given))[0]


def test_a_replica_for_each_target_of_all_requests():
    assert wanted(3.0, 5.0) == 4
    # Serve rounds it up: a model that is used at all keeps a replica.
    assert 0 < wanted(0.01) < 1
    assert wanted(0.0, 0.0) == 0


def test_it_stays_as_it_is_until_a_replica_has_told():
    assert wanted(running=3) == 3


def test_a_replica_fits_on_one_node_and_not_on_the_rest_of_several():
    nodes = [{"CPU": 1.0}, {"CPU": 1.0, "GPU": 1.0}]
    assert fits({"CPU": 1, "GPU": 0}, nodes)
    assert fits({"CPU": 1, "GPU": 1}, nodes)
    assert not fits({"CPU": 2, "GPU": 0}, nodes)
