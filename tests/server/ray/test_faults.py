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
fovea_preprocess.errors.ModelNotReady: m: m/1/model.xml was changed after the build"""
REASON = "m/1/model.xml was changed after the build"


def unhealthy(trigger: str, status: str = "UNHEALTHY", **states: int) -> ApplicationStatusOverview:
    deployment = DeploymentStatusOverview(
        DeploymentStatus[status], DeploymentStatusTrigger[trigger], states, MESSAGE
    )
    return ApplicationStatusOverview(ApplicationStatus[status], "", 0.0, {"m": deployment})


@pytest.mark.parametrize(
    ("trigger", "states", "failed"),
    [
        ("REPLICA_STARTUP_FAILED", {"STARTING": 1}, {"m": REASON}),
        # Old replicas answer.
        ("REPLICA_STARTUP_FAILED", {"RUNNING": 1}, {}),
        ("REPLICA_STARTUP_FAILED", {"PENDING_MIGRATION": 1}, {}),
        # A node has died.
        ("HEALTH_CHECK_FAILED", {"STARTING": 1}, {}),
    ],
)
def test_replicas_that_cannot_start(trigger, states, failed):
    assert failed_starts(unhealthy(trigger, **states)) == failed


FAILED = ApplicationStatusOverview(ApplicationStatus.DEPLOY_FAILED, " no module\n", 0.0, {})


@pytest.mark.parametrize(
    ("status", "reasons"),
    [
        # A dead replica is replaced.
        (unhealthy("HEALTH_CHECK_FAILED", RUNNING=2, STARTING=1), []),
        (unhealthy("HEALTH_CHECK_FAILED", "DEPLOY_FAILED", RUNNING=1), [f"m: {REASON}"]),
        (unhealthy("REPLICA_STARTUP_FAILED", STARTING=1), [f"m: {REASON}"]),
        (FAILED, ["the deployment failed: no module"]),
    ],
)
def test_a_deployment_ends_where_it_cannot_go_on(status, reasons):
    assert lasting_failures(status) == reasons


def test_a_deployment_does_not_wait_for_a_replica_that_dies_again_and_again(monkeypatch):
    """Serve's statuses are made here: a real one would take ten minutes."""
    states = itertools.cycle(({"RUNNING": 2}, {"RUNNING": 1, "STARTING": 1}))

    def status() -> ServeStatus:
        return ServeStatus(applications={"a": unhealthy("HEALTH_CHECK_FAILED", **next(states))})

    monkeypatch.setattr(deploy.serve, "status", status)
    monkeypatch.setattr(deploy, "_LOOK_S", 0.0)
    said: list[str] = []
    with pytest.raises(Unavailable):
        deploy._follow("a", said.append)
    assert len(said) > 2
