"""Serve's status of a deployment tells whether its replicas cannot start."""

import itertools

import pytest

pytest.importorskip("ray")
from ray.serve.schema import (
    ApplicationStatus,
    ApplicationStatusOverview,
    DeploymentStatus,
    DeploymentStatusOverview,
    DeploymentStatusTrigger,
    ServeStatus,
)

from fovea_preprocess.errors import Unavailable
from fovea_server.ray import deploy
from fovea_server.ray.faults import failed_starts, lasting_failures

pytestmark = pytest.mark.cluster

MESSAGE = """The deployment failed to start 3 times in a row. Error:
Traceback (most recent call last):
fovea_preprocess.errors.ModelNotReady: m: m/1/model.xml is not the file that was built"""


def unhealthy(trigger: str, status: str = "UNHEALTHY", **states: int) -> ApplicationStatusOverview:
    deployment = DeploymentStatusOverview(
        DeploymentStatus[status], DeploymentStatusTrigger[trigger], states, MESSAGE
    )
    return ApplicationStatusOverview(ApplicationStatus[status], "", 0.0, {"m": deployment})


def found(trigger: str, **states: int) -> dict[str, str]:
    return failed_starts(unhealthy(trigger, **states))


def test_one_that_is_tried_again_and_again():
    reason = "m/1/model.xml is not the file that was built"
    assert found("REPLICA_STARTUP_FAILED", STARTING=1) == {"m": reason}


@pytest.mark.parametrize("state", ["RUNNING", "PENDING_MIGRATION"])
def test_one_whose_old_replicas_answer(state):
    assert found("REPLICA_STARTUP_FAILED", **{state: 1}) == {}


def test_one_whose_node_has_died():
    assert found("HEALTH_CHECK_FAILED", STARTING=1) == {}


def test_a_deployment_goes_on_while_a_dead_replica_is_replaced():
    assert lasting_failures(unhealthy("HEALTH_CHECK_FAILED", RUNNING=2, STARTING=1)) == []


def test_a_deployment_ends_where_serve_has_stopped_the_update():
    reason = "m/1/model.xml is not the file that was built"
    stopped = unhealthy("HEALTH_CHECK_FAILED", "DEPLOY_FAILED", RUNNING=1)
    assert lasting_failures(stopped) == [f"m: {reason}"]


def test_a_deployment_does_not_wait_for_a_replica_that_dies_again_and_again(monkeypatch):
    """Serve's statuses are made here: a real one would take ten minutes."""
    states = itertools.cycle(({"RUNNING": 2}, {"RUNNING": 1, "STARTING": 1}))

    def status() -> ServeStatus:
        return ServeStatus(applications={"a": unhealthy("HEALTH_CHECK_FAILED", **next(states))})

    monkeypatch.setattr(deploy.serve, "status", status)
    monkeypatch.setattr(deploy, "_LOOK_S", 0.0)
    said: list[str] = []
    with pytest.raises(Unavailable, match="there was no progress"):
        deploy._follow("a", said.append)
    assert len(said) > 2


def test_a_deployment_ends_where_a_replica_cannot_start():
    reason = "m/1/model.xml is not the file that was built"
    assert lasting_failures(unhealthy("REPLICA_STARTUP_FAILED", STARTING=1)) == [f"m: {reason}"]


def test_a_deployment_ends_where_its_application_cannot_be_made():
    failed = ApplicationStatusOverview(ApplicationStatus.DEPLOY_FAILED, " no module\n", 0.0, {})
    assert lasting_failures(failed) == ["the deployment failed: no module"]
