"""tritonclient's calls about the server and its models."""

import json

import numpy as np
import pytest
from google.protobuf.json_format import MessageToDict
from tests.clients.conftest import FIRST, NEVER_TOUCHED, ONES, check_sums, make_pair
from tritonclient.utils import InferenceServerException

pytestmark = pytest.mark.real


def parse(response):
    """Make a dict or list of a response of either protocol."""
    if isinstance(response, dict | list):
        return response
    return MessageToDict(response, preserving_proto_field_name=True)


def read_config(client, model):
    config = parse(client.get_model_config(model))
    return config.get("config", config)


def read_index(client) -> dict[str, dict]:
    listed = parse(client.get_model_repository_index())
    rows = listed if isinstance(listed, list) else listed["models"]
    return {row["name"]: row for row in rows}


@pytest.fixture
def model(client):
    """A model that a test may load and unload; afterwards it is loaded as before."""
    yield "simple_nobatch"
    client.load_model("simple_nobatch")


def test_health_and_metadata(client):
    assert client.is_server_live()
    assert client.is_server_ready()
    versions = {("simple", ""): True, ("simple", "1"): True, ("simple", "9"): False}
    for (model, version), ready in {**versions, ("nobody", ""): False}.items():
        assert client.is_model_ready(model, version) == ready
    metadata = parse(client.get_server_metadata())
    assert (metadata["name"], metadata["version"]) == ("triton", "2.51.0")
    assert {"binary_tensor_data", "statistics"} <= set(metadata["extensions"])
    metadata = parse(client.get_model_metadata("simple"))
    assert metadata["versions"] == ["1"]
    assert [tensor["name"] for tensor in metadata["inputs"]] == ["INPUT0", "INPUT1"]
    assert [int(dim) for dim in metadata["outputs"][0]["shape"]] == [-1, 16]
    config = read_config(client, "simple")
    assert (config["name"], config["max_batch_size"]) == ("simple", 8)
    assert [tensor["data_type"] for tensor in config["input"]] == ["TYPE_INT32"] * 2
    with pytest.raises(InferenceServerException, match="unknown model: 'nobody' is not found"):
        client.get_model_metadata("nobody")


def test_statistics_count_requests_and_executions(client, protocol):
    def counts(model: str) -> list[int]:
        found = parse(client.get_inference_statistics(model))["model_stats"][0]
        success = found["inference_stats"].get("success", {})
        numbers = (found.get("inference_count"), found.get("execution_count"), success.get("count"))
        return [int(number or 0) for number in numbers]

    before = counts("simple")
    for _ in range(3):
        client.infer("simple", make_pair(protocol, np.repeat(FIRST, 2, 0), np.repeat(ONES, 2, 0)))
    assert np.subtract(counts("simple"), before).tolist() == [6, 3, 3]
    assert counts(NEVER_TOUCHED) == [0, 0, 0]


def test_load_and_unload(client, protocol, model):
    flat = make_pair(protocol, FIRST[0], ONES[0])
    assert read_index(client)[model]["state"] == "READY"
    client.unload_model(model)
    row = read_index(client)[model]
    assert (row["state"], row["reason"]) == ("UNAVAILABLE", "unloaded")
    assert not client.is_model_ready(model)
    with pytest.raises(InferenceServerException, match="has no available versions"):
        client.infer(model, flat)
    assert client.is_server_ready()  # an unload is not a failure
    client.load_model(model)
    config = read_config(client, model)
    config["parameters"] = {"note": {"string_value": "another"}}
    client.load_model(model, config=json.dumps(config))
    assert read_config(client, model)["parameters"]["note"]["string_value"] == "another"
    for wrong, config in ((model, '{"max_batch_size": "many"}'), ("nobody", None)):
        with pytest.raises(InferenceServerException, match=f"failed to load '{wrong}'"):
            client.load_model(wrong, config=config)
    client.unload_model("nobody")
    # The model stays as it was.
    check_sums(client.infer(model, flat), FIRST[0], ONES[0])
    assert client.is_server_ready()


def test_load_with_files(client, protocol, repository):
    model = (repository / "simple" / "1" / "model.onnx").read_bytes()
    config = json.dumps({"backend": "onnxruntime", "max_batch_size": 8})
    client.load_model("from_the_wire", config=config, files={"file:1/model.onnx": model})
    try:
        check_sums(client.infer("from_the_wire", make_pair(protocol)))
    finally:
        client.unload_model("from_the_wire")


def test_trace_and_log_settings(client):
    before = parse(client.get_trace_settings("simple"))
    changed = parse(client.update_trace_settings("simple", settings={"trace_rate": "7"}))
    assert "7" in json.dumps(changed)
    restored = parse(client.update_trace_settings("simple", settings={"trace_rate": None}))
    assert restored == before
    before = parse(client.get_log_settings())
    assert parse(client.update_log_settings(settings={"log_verbose_level": 1})) != before
    assert parse(client.update_log_settings(settings={"log_verbose_level": 0})) == before
