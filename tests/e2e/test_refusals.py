"""What is wrong with a request, over /v1, /v2 and gRPC: one status and one code for each."""

import cv2
import httpx
import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tests.built import build
from tests.e2e.conftest import images
from tests.engines.fragile import fragile_classifier, fragile_detector, fragile_map
from tests.serving import start_server
from tritonclient.utils import InferenceServerException

from fovea_client import Client, ServerError
from fovea_engines.build.plan import BuildPlan

pytestmark = pytest.mark.slow

INVALID = (400, "INVALID_ARGUMENT")
# What is asked, beside a good image for the model digits: status and code of /v1, status of /v2,
# code of gRPC.
WRONG = {
    "an unknown model": ({"model": "nobody"}, (404, "not_found"), (404, "NOT_FOUND")),
    "a version that is not there": ({"version": 9}, (404, "not_found"), (404, "NOT_FOUND")),
    "no image": ({"image": b"text"}, (400, "invalid_image"), INVALID),
    "half an image": ({"image": slice(5000)}, (400, "invalid_image"), INVALID),
    "no bytes": ({"image": b""}, (400, "invalid_request"), INVALID),
    "an option out of range": ({"conf": 2.0}, (422, "invalid_option"), INVALID),
    "a class of another name": ({"classes": "sofa"}, (422, "invalid_option"), INVALID),
    "a task's option": ({"track": "sometimes"}, (422, "invalid_option"), INVALID),
}


def over_triton(server, protocol, model, image, *, version="", outputs=None, **options):
    """The answer, or the refusal's status."""
    port = server.port if protocol is http_client else server.grpc_port
    with protocol.InferenceServerClient(f"127.0.0.1:{port}") as client:
        try:
            return client.infer(
                model,
                images(protocol, *image, name="images"),
                model_version=str(version),
                outputs=outputs,
                parameters=options,
            )
        except InferenceServerException as refused:
            return refused.status().removeprefix("StatusCode.")


@pytest.mark.parametrize(("asked", "of_v1", "of_v2"), WRONG.values(), ids=WRONG)
def test_each_protocol_refuses_it(demo_server, scene, asked, of_v1, of_v2):
    given = {"model": "digits", "image": scene, **asked}
    if isinstance(given["image"], slice):
        given["image"] = scene[given["image"]]
    model, image = given.pop("model"), given.pop("image")
    with Client(demo_server.url) as client, pytest.raises(ServerError) as refused:
        client.predict(model, image, **given)
    assert (refused.value.status, refused.value.code) == of_v1
    status, code = of_v2
    assert over_triton(demo_server, http_client, model, [image], **given) == str(status)
    assert over_triton(demo_server, grpc_client, model, [image], **given) == code
    # Behind a good image it is refused all the same.
    if "image" in asked:
        assert over_triton(demo_server, grpc_client, model, [scene, image]) == code


@pytest.mark.parametrize("protocol", [http_client, grpc_client], ids=["http", "grpc"])
def test_outputs_of_tensors_and_options_of_other_names_are_refused(demo_server, scene, protocol):
    wanted = [protocol.InferRequestedOutput("output0")]
    for given in ({"outputs": wanted}, {"confidence": 0.5}):
        status = over_triton(demo_server, protocol, "digits", [scene], **given)
        assert status in map(str, INVALID)


MODELS = {"detect": fragile_detector, "classify": fragile_classifier, "semantic": fragile_map}
PLAIN = {"mean": (0, 0, 0), "std": (1, 1, 1)}  # so that black is zero
DARK, BRIGHT = (
    cv2.imencode(".png", np.full((64, 64, 3), value, np.uint8))[1].tobytes() for value in (0, 200)
)


@pytest.fixture(scope="module")
def fragile(tmp_path_factory):
    """A server of models that compute no number from a dark image."""
    folder = tmp_path_factory.mktemp("fragile")
    for name, write in MODELS.items():
        source = write(folder / f"{name}.onnx")
        build(BuildPlan(source, name, folder / "r", "onnxruntime", preprocess=PLAIN))
    server = start_server(folder / "r", folder)
    yield server
    assert server.stop() == 0


@pytest.mark.parametrize("name", MODELS)
def test_an_image_without_an_answer_is_an_error_and_is_counted(fragile, name):
    def failures() -> float:
        labels = f'model="{name}"', 'reason="BACKEND"'
        return float(fragile.metric("nv_inference_request_failure", *labels))

    url, before = fragile.predict_url(name), failures()
    answer = httpx.post(url, content=DARK)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (500, "not_finite")
    for named in (name, "output out", "--precision fp32"):
        assert named in error["message"]
    assert failures() == before + 1
    drawn = httpx.post(url, content=DARK, headers={"Accept": "image/png"})
    assert (drawn.status_code, failures()) == (500, before + 2)
    assert over_triton(fragile, grpc_client, name, [DARK]) == "INTERNAL"
    assert httpx.post(url, content=BRIGHT).status_code == 200


def test_other_images_keep_their_answers_and_tensors_are_what_the_model_computed(fragile):
    """Triton passes NaN on."""
    files = [("images", ("a.png", BRIGHT)), ("images", ("b.png", DARK))]
    answer = httpx.post(fragile.predict_url("classify"), files=files)
    bright, dark = answer.json()["images"]
    assert bright["classes"][0]["class_name"] == "bright"
    assert dark["error"]["code"] == "not_finite"
    row = np.zeros((1, 3, 64, 64), np.float32)
    given = http_client.InferInput("images", row.shape, "FP32")
    given.set_data_from_numpy(row)
    with http_client.InferenceServerClient(f"127.0.0.1:{fragile.port}") as client:
        assert np.isnan(client.infer("detect", [given]).as_numpy("output0")).all()
