"""What a model cannot compute is an error of /v1, and never an image on which nothing is found."""

import cv2
import httpx
import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tests.built import build
from tests.e2e.test_v2_images import images
from tests.engines.fragile import fragile_classifier, fragile_detector, fragile_map
from tests.serving import start_server
from tritonclient.utils import InferenceServerException

from fovea_engines.build.plan import BuildPlan

pytestmark = pytest.mark.slow

MODELS = {"detect": fragile_detector, "classify": fragile_classifier, "semantic": fragile_map}
PLAIN = {"mean": (0, 0, 0), "std": (1, 1, 1)}  # so that black is zero
DARK, BRIGHT = (
    cv2.imencode(".png", np.full((64, 64, 3), value, np.uint8))[1].tobytes() for value in (0, 200)
)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fragile")
    for name, write in MODELS.items():
        source = write(folder / f"{name}.onnx")
        build(BuildPlan(source, name, folder / "r", "onnxruntime", preprocess=PLAIN))
    server = start_server(folder / "r", folder)
    yield server
    assert server.stop() == 0


def failures(server, name):
    text = httpx.get(f"http://127.0.0.1:{server.metrics_port}/metrics").text
    [line] = [
        line
        for line in text.splitlines()
        if line.startswith("nv_inference_request_failure")
        and f'model="{name}"' in line
        and 'reason="BACKEND"' in line
    ]
    return float(line.split()[-1])


@pytest.mark.parametrize("name", MODELS)
def test_an_image_without_an_answer_is_an_error_and_is_counted(server, name):
    url, before = server.predict_url(name), failures(server, name)
    answer = httpx.post(url, content=DARK)
    assert answer.status_code == 500
    error = answer.json()["error"]
    assert error["code"] == "not_finite"
    assert f"of {name} is NaN or infinite" in error["message"]
    assert "output out" in error["message"]
    assert "--precision fp32" in error["message"]
    assert failures(server, name) == before + 1
    drawn = httpx.post(url, content=DARK, headers={"Accept": "image/png"})
    assert (drawn.status_code, failures(server, name)) == (500, before + 2)
    assert httpx.post(url, content=BRIGHT).status_code == 200


def test_other_images_of_the_request_keep_their_answers(server):
    files = [("images", ("a.png", BRIGHT)), ("images", ("b.png", DARK))]
    answer = httpx.post(server.predict_url("classify"), files=files)
    bright, dark = answer.json()["images"]
    assert bright["classes"][0]["class_name"] == "bright"
    assert dark["error"]["code"] == "not_finite"


def test_images_over_v2_are_errors_and_tensors_are_what_the_model_computed(server):
    """Triton passes NaN on."""
    with (
        grpc_client.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client,
        pytest.raises(InferenceServerException, match="NaN or infinite"),
    ):
        client.infer("detect", images(grpc_client, DARK, name="images"))
    row = np.zeros((1, 3, 64, 64), np.float32)
    given = http_client.InferInput("images", row.shape, "FP32")
    given.set_data_from_numpy(row)
    with http_client.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
        assert np.isnan(client.infer("detect", [given]).as_numpy("output0")).all()
