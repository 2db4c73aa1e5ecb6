"""Folders as Triton's users have them: served as they are, or said what to change."""

import time

import httpx
import numpy as np
import onnx
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from onnx.external_data_helper import convert_model_to_external_data
from tests.server.registries import ADDER_CONFIG, adder
from tests.serving import start_server
from tritonclient.utils import InferenceServerException

pytestmark = pytest.mark.slow

PYTHON = 'backend: "python"\nmax_batch_size: 4\n'


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("triton")
    models = folder / "models"
    adder(models, "plus", config=ADDER_CONFIG)

    beside = adder(models, "beside") / "1"
    model = onnx.load(beside / "model.onnx")
    (beside / "model.onnx").unlink()
    (beside / "model.onnx").mkdir()
    convert_model_to_external_data(model, location="weights.bin", size_threshold=0)
    onnx.save(model, beside / "model.onnx" / "model.onnx")

    (adder(models, "loose", config=ADDER_CONFIG) / "1" / "model.onnx").rename(
        models / "loose" / "model.onnx"
    )
    (models / "loose" / "1").rmdir()
    (adder(models, "named") / "1").rename(models / "named" / "v1")
    adder(models, "my model")
    adder(models, "modèle")
    (models / "notes").mkdir()
    (models / "notes" / "read me.txt").write_text("no model")
    adder(models, "plan", config=f'{ADDER_CONFIG}platform: "tensorrt_plan"')
    (models / "script" / "1").mkdir(parents=True)
    (models / "script" / "1" / "model.py").write_text("class TritonPythonModel: pass")
    (models / "script" / "config.pbtxt").write_text(PYTHON)
    decoupled = f"{ADDER_CONFIG}model_transaction_policy {{ decoupled: true }}"
    adder(models, "stream", config=decoupled)

    flags = ("--strict-readiness=false",)
    server = start_server(models, folder, flags)
    yield server
    assert server.stop() == 0


@pytest.fixture
def entries(server) -> dict[str, dict]:
    index = httpx.post(server.url + "/v2/repository/index", json={}).json()
    return {entry["name"]: entry for entry in index}


def infer(server, name: str) -> list[int]:
    given = http_client.InferInput("X", (1, 4), "INT32")
    given.set_data_from_numpy(np.zeros((1, 4), np.int32))
    with http_client.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
        return client.infer(name, [given]).as_numpy("Y")[0].tolist()


def test_weights_may_lie_beside_the_model_in_a_folder_of_its_name(server):
    assert infer(server, "beside") == [1, 1, 1, 1]


@pytest.mark.parametrize("name", ["loose", "named"])
def test_a_model_without_a_version_is_there_and_says_what_it_lacks(server, entries, name):
    told = f"put its files into a version's folder, {name}/1"
    assert entries[name]["state"] == "UNAVAILABLE"
    assert told in entries[name]["reason"]
    assert told in server.log.read_text()


def test_without_it_the_server_is_not_ready(tmp_path):
    adder(tmp_path / "models", "plus")
    folder = adder(tmp_path / "models", "loose")
    (folder / "1").rename(folder / "first")
    server = start_server(tmp_path / "models", tmp_path, wait=False)
    try:
        with httpx.Client(base_url=server.url) as client:
            while client.get("/v2/models/plus/ready").status_code != 200:
                time.sleep(0.01)
            ready, why = client.get("/v2/health/ready"), client.get("/v1/health/ready").text
    finally:
        assert server.stop() == 0
    assert ready.status_code != 200
    assert "loose/1" in why


def test_a_folder_that_cannot_name_a_model_is_named_and_others_are_not(server, entries):
    text = server.log.read_text()
    for name in ("my model", "modèle"):
        assert f"the model in folder {name!r} is not served: rename the folder" in text
    assert "notes" not in text
    assert entries["notes"] == {"name": "notes"}


def test_a_platform_that_is_not_the_files_is_corrected(entries):
    told = 'model.onnx is of platform "onnxruntime_onnx"; write that into config.pbtxt'
    assert told in entries["plan"]["reason"]


def test_a_python_model_hears_that_it_may_not_be_needed(entries):
    assert "Fovea does that itself" in entries["script"]["reason"]


def test_a_decoupled_model_is_run_by_streams_alone_and_the_log_says_so(server):
    assert "model stream is decoupled: as in Triton, only streams" in server.log.read_text()
    assert "no effect here: model_transaction_policy" not in server.log.read_text()
    with pytest.raises(InferenceServerException, match="decoupled transaction policy"):
        infer(server, "stream")
    given = grpc_client.InferInput("X", (1, 4), "INT32")
    given.set_data_from_numpy(np.zeros((1, 4), np.int32))
    answers = []
    with grpc_client.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        client.start_stream(lambda result, error: answers.append((result, error)))
        client.async_stream_infer("stream", [given])
        client.stop_stream()
    [(result, error)] = answers
    assert error is None
    assert result.as_numpy("Y")[0].tolist() == [1, 1, 1, 1]
