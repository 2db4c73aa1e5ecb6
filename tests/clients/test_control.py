"""tritonclient's calls about the server and its models."""

import json

import numpy as np
import pytest
from google.protobuf.json_format import MessageToDict
from tests.clients.conftest import NEVER_TOUCHED, make_pair
from tritonclient.utils import InferenceServerException

pytestmark = pytest.mark.real

FIRST = np.arange(16, dtype=np.int32).reshape(1, 16)
ONES = np.ones((1, 16), np.int32)


def plain(answer):
    """An answer of either protocol as a dict."""
    if isinstance(answer, dict | list):
        return answer
    return MessageToDict(answer, preserving_proto_field_name=True)


def index(client) -> dict[str, dict]:
    listed = plain(client.get_model_repository_index())
    rows = listed if isinstance(listed, list) else listed["models"]
    return {row["name"]: row for row in rows}


@pytest.fixture
def reloaded(client):
    """A model that a test may load and unload; afterwards it is as it was."""
    yield "simple_nobatch"
    client.load_model("simple_nobatch")


def test_health(client):
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("simple")
    assert client.is_model_ready("simple", "1")
    assert not client.is_model_ready("simple", "9")
    assert not client.is_model_ready("nobody")


def test_server_metadata(client):
    told = plain(client.get_server_metadata())
    assert (told["name"], told["version"]) == ("triton", "2.51.0")
    assert {"binary_tensor_data", "system_shared_memory", "statistics"} <= set(told["extensions"])


def test_model_metadata(client):
    told = plain(client.get_model_metadata("simple"))
    assert told["versions"] == ["1"]
    assert [tensor["name"] for tensor in told["inputs"]] == ["INPUT0", "INPUT1"]
    assert [int(dim) for dim in told["outputs"][0]["shape"]] == [-1, 16]
    with pytest.raises(InferenceServerException, match="unknown model: 'nobody' is not found"):
        client.get_model_metadata("nobody")


def test_model_config(client):
    told = plain(client.get_model_config("simple"))
    config = told.get("config", told)
    assert config["name"] == "simple"
    assert config["max_batch_size"] == 8
    assert [tensor["data_type"] for tensor in config["input"]] == ["TYPE_INT32"] * 2


def test_statistics_count_requests_and_executions(client, protocol):
    def counts() -> tuple[int, int, int]:
        stats = plain(client.get_inference_statistics("simple"))["model_stats"][0]
        success = stats["inference_stats"].get("success", {})
        return tuple(
            int(number)
            for number in (
                stats.get("inference_count", 0),
                stats.get("execution_count", 0),
                success.get("count", 0),
            )
        )

    rows, executions, requests = counts()
    for _ in range(3):
        client.infer("simple", make_pair(protocol, np.repeat(FIRST, 2, 0), np.repeat(ONES, 2, 0)))
    assert counts() == (rows + 6, executions + 3, requests + 3)
    untouched = plain(client.get_inference_statistics(NEVER_TOUCHED))["model_stats"][0]
    assert int(untouched.get("inference_count", 0)) == 0


def test_load_and_unload(client, protocol, reloaded):
    flat = make_pair(protocol, FIRST[0], ONES[0])
    assert index(client)[reloaded]["state"] == "READY"
    client.unload_model(reloaded)
    row = index(client)[reloaded]
    assert (row["state"], row["reason"]) == ("UNAVAILABLE", "unloaded")
    assert not client.is_model_ready(reloaded)
    with pytest.raises(InferenceServerException, match="has no available versions"):
        client.infer(reloaded, flat)
    # An unload that was asked for is not a failure of the server.
    assert client.is_server_ready()
    client.load_model(reloaded)
    result = client.infer(reloaded, flat)
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), FIRST[0] + 1)


def test_load_with_a_config_of_ones_own(client, protocol, reloaded):
    config = plain(client.get_model_config(reloaded))
    config = config.get("config", config)
    config["parameters"] = {"note": {"string_value": "another"}}
    client.load_model(reloaded, config=json.dumps(config))
    told = plain(client.get_model_config(reloaded))
    assert told.get("config", told)["parameters"]["note"]["string_value"] == "another"
    with pytest.raises(InferenceServerException, match=f"failed to load '{reloaded}'"):
        client.load_model(reloaded, config='{"max_batch_size": "many"}')
    # What was served before is still served.
    client.infer(reloaded, make_pair(protocol, FIRST[0], ONES[0]))


def test_load_with_files(client, protocol, repository):
    model = (repository / "simple" / "1" / "model.onnx").read_bytes()
    config = json.dumps({"backend": "onnxruntime", "max_batch_size": 8})
    client.load_model("from_the_wire", config=config, files={"file:1/model.onnx": model})
    try:
        result = client.infer("from_the_wire", make_pair(protocol, FIRST, ONES))
        np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), FIRST - ONES)
    finally:
        client.unload_model("from_the_wire")


def test_what_cannot_be_loaded_is_told(client):
    with pytest.raises(
        InferenceServerException, match="failed to load 'nobody', failed to poll from model repo"
    ):
        client.load_model("nobody")
    client.unload_model("nobody")
    assert client.is_server_ready()


def test_trace_settings(client):
    before = plain(client.get_trace_settings("simple"))
    changed = plain(client.update_trace_settings("simple", settings={"trace_rate": "7"}))
    assert "7" in json.dumps(changed)
    restored = plain(client.update_trace_settings("simple", settings={"trace_rate": None}))
    assert restored == before


def test_log_settings(client):
    before = plain(client.get_log_settings())
    changed = plain(client.update_log_settings(settings={"log_verbose_level": 1}))
    assert changed != before
    assert plain(client.update_log_settings(settings={"log_verbose_level": 0})) == before
