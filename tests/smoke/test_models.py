"""Models of ten lineages: built as by a user, served by one server, asked over /v1 and v2."""

import json

import httpx
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tests.engines.zoo.cases import HEADS, case_of
from tests.engines.zoo.rows import assert_rows, plainly
from tests.serving import start_server

from fovea_engines.evaluation.samples import read_image
from fovea_engines.repository.card import CARD_FILE, EngineCard
from fovea_preprocess.preprocessor import Preprocessor

pytestmark = [pytest.mark.smoke, pytest.mark.real]

MODELS = {
    "dfine": "openvino",
    "hf-detr": "onnxruntime",
    "nanodet-m-416": "openvino",
    "ppyoloe": "onnxruntime",
    "rfdetr": "openvino",
    "rtmdet": "onnxruntime",
    "tf-od": "openvino",
    "yolo11-pose": "openvino",
    "yolox-nano-decoded": "onnxruntime",
    "yunet-n-dynamic": "openvino",
}
BY_TRITON = "yolox-nano-decoded"


@pytest.fixture(scope="module")
def repository(shared, tmp_path_factory):
    return tmp_path_factory.mktemp("repository")


@pytest.fixture(scope="module")
def server(repository, tmp_path_factory):
    flags = ["--model-control-mode=explicit"]
    server = start_server(repository, tmp_path_factory.mktemp("log"), flags)
    yield server
    assert server.stop() == 0


@pytest.fixture
def served(repository, server, fovea, tmp_path):
    """Where a model predicts, which the first test that asks builds."""

    def url(name: str) -> str:
        if not (repository / name).exists():
            flags = ["--repository", repository, "--backend", MODELS[name]]
            if given := case_of(name).given:
                trained = tmp_path / "preprocess.json"
                trained.write_text(json.dumps(given["preprocess"]))
                flags += ["--preprocess", trained]
            code, _, err = fovea("build", HEADS / f"{name}.onnx", *flags)
            assert code == 0, err
            load = f"{server.url}/v2/repository/models/{name}/load"
            assert httpx.post(load, timeout=60).status_code == 200
        return server.predict_url(name)

    return url


@pytest.mark.parametrize("name", MODELS)
def test_rows_are_those_of_the_family(served, shared, name):
    assert_rows(served(name), name, shared)


@pytest.fixture(params=[tritonclient.http, tritonclient.grpc], ids=["http", "grpc"])
def protocol(request):
    return request.param


@pytest.fixture
def infer(server, protocol):
    """Ask a model by a client of Triton for what it makes of one array."""
    port = server.grpc_port if protocol is tritonclient.grpc else server.port
    with protocol.InferenceServerClient(f"127.0.0.1:{port}") as client:

        def infer_with(array, datatype):
            [taken] = httpx.get(f"{server.url}/v2/models/{BY_TRITON}").json()["inputs"]
            tensor = protocol.InferInput(taken["name"], list(array.shape), datatype)
            tensor.set_data_from_numpy(array)
            return client.infer(BY_TRITON, [tensor])

        yield infer_with


def test_triton_clients_get_the_detections_of_v1(served, infer, shared):
    image = (shared / "data" / "bus.jpg").read_bytes()
    [found] = httpx.post(served(BY_TRITON), content=image, timeout=60).json()["images"]
    answer = infer(np.array([image], object), "BYTES")
    number = len(found["detections"])
    assert answer.as_numpy("num_detections").tolist() == [number]
    assert number
    have = [answer.as_numpy(name)[0] for name in ("boxes", "scores", "class_ids")]
    for index, want in enumerate(found["detections"]):
        box, score, class_id = (column[index] for column in have)
        sides = [want["box"][side] for side in ("x1", "y1", "x2", "y2")]
        assert box == pytest.approx(sides, abs=0.01)
        assert (score, class_id) == (pytest.approx(want["score"], abs=1e-5), want["class_id"])


def test_triton_clients_get_the_outputs_of_a_tensor(served, repository, infer, shared):
    served(BY_TRITON)
    spec = EngineCard.read(repository / BY_TRITON / "1" / CARD_FILE).preprocess
    row = np.empty((1, *spec.row_shape), spec.dtype)
    Preprocessor(spec)(read_image(shared / "data" / "bus.jpg"), row[0])
    answer = infer(row, "FP32")
    for output, want in plainly(BY_TRITON, row).items():
        have = answer.as_numpy(output)
        assert (have.shape, have.dtype) == (want.shape, want.dtype)
        np.testing.assert_allclose(have, want, atol=1e-3 * np.abs(want).max())
