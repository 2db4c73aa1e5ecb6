"""Serve's status of a deployment tells whether its replicas cannot start."""

import pytest

pytest.importorskip("ray")
from ray.serve.schema import (
    ApplicationStatus,
    ApplicationStatusOverview,
    DeploymentStatus,
    DeploymentStatusOverview,
    DeploymentStatusTrigger,
)

from fovea_cluster.ray.faults import faults

MESSAGE = """The deployment failed to start 3 times in a row. Error:
Traceback (most recent call last):
fovea_preprocess.errors.ModelNotReady: m: m/1/model.xml is not the file that was built"""


def found(trigger: str, **states: int) -> dict[str, str]:
    deployment = DeploymentStatusOverview(
        DeploymentStatus.UNHEALTHY, DeploymentStatusTrigger[trigger], states, MESSAGE
    )
    running = ApplicationStatus.RUNNING
    return faults(ApplicationStatusOverview(running, "", 0.0, {"m": deployment}))


def test_one_that_is_tried_again_and_again():
    reason = "m/1/model.xml is not the file that was built"
    assert found("REPLICA_STARTUP_FAILED", STARTING=1) == {"m": reason}


@pytest.mark.parametrize("state", ["RUNNING", "PENDING_MIGRATION"])
def test_one_whose_old_replicas_answer(state):
    assert found("REPLICA_STARTUP_FAILED", **{state: 1}) == {}


def test_one_whose_node_has_died():
    assert found("HEALTH_CHECK_FAILED", STARTING=1) == {}
