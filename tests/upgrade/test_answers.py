"""HEAD answers the recorded requests as the older version did, on the repository that it wrote."""

from collections.abc import Iterator

import pytest
from tests.serving import RunningServer
from tests.upgrade.conftest import Answers
from tests.upgrade.grpc_asked import call, calls
from tests.upgrade.recorded import DATA, load
from tests.upgrade.same import differences
from tritonclient import grpc

pytestmark = pytest.mark.slow


OLD = load("answers.json")


@pytest.mark.parametrize("name", OLD)
def test_http(name: str, answers: Answers) -> None:
    found = differences(OLD[name], answers[name], name)
    assert not found, "\n".join(found)


# HEAD answers the recorded calls of gRPC as the older version did.


OLD_CALLS = load("grpc.json")
CALLS = calls(DATA / "images")


@pytest.fixture(scope="module")
def client(server: RunningServer, answers: Answers) -> Iterator[grpc.InferenceServerClient]:
    """A client of the server, after it was asked over HTTP as in the record."""
    with grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        yield client


@pytest.mark.parametrize("name", OLD_CALLS)
def test_grpc(name: str, client: grpc.InferenceServerClient) -> None:
    found = differences(OLD_CALLS[name], call(client, CALLS[name]), f"gRPC {name}")
    assert not found, "\n".join(found)
