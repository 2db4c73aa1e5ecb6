"""Image in, boxes out, by Triton's own clients: what /v1 answers, as tensors."""

import httpx
import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tests.listed import check_listed

pytestmark = pytest.mark.slow

OUTPUTS = ["num_detections", "boxes", "scores", "class_ids", "class_names"]


@pytest.fixture(params=[http_client, grpc_client], ids=["http", "grpc"])
def protocol(request):
    return request.param


@pytest.fixture
def client(protocol, demo_server):
    port = demo_server.port if protocol is http_client else demo_server.grpc_port
    with protocol.InferenceServerClient(f"127.0.0.1:{port}") as made:
        yield made


def images(protocol, *encoded: bytes, name: str):
    array = np.empty(len(encoded), object)
    array[:] = encoded
    tensor = protocol.InferInput(name, [len(encoded)], "BYTES")
    tensor.set_data_from_numpy(array)
    return [tensor]


@pytest.fixture(scope="module")
def image_input(demo_server) -> str:
    """Name of the demo model's input."""
    return httpx.get(f"{demo_server.url}/v2/models/digits").json()["inputs"][0]["name"]


def test_boxes_are_those_of_v1(client, protocol, demo_server, image_input, scene, second_scene):
    inputs = images(protocol, scene, second_scene, name=image_input)
    answer = client.infer("digits", inputs, request_id="two")
    assert answer.get_response() is not None
    check_listed(demo_server, "digits", answer)
    found = {name: answer.as_numpy(name) for name in OUTPUTS}
    for row, image in enumerate((scene, second_scene)):
        expected = httpx.post(demo_server.predict_url("digits"), content=image).json()
        expected = expected["images"][0]["detections"]
        number = int(found["num_detections"][row])
        assert number == len(expected) > 0
        boxes = [[each["box"][corner] for corner in ("x1", "y1", "x2", "y2")] for each in expected]
        np.testing.assert_allclose(found["boxes"][row, :number], boxes, atol=0.01)
        np.testing.assert_allclose(
            found["scores"][row, :number], [each["score"] for each in expected], atol=1e-5
        )
        ids = [each["class_id"] for each in expected]
        assert found["class_ids"][row, :number].tolist() == ids
        names = [each["class_name"] for each in expected]
        assert [name.decode() for name in found["class_names"][row, :number]] == names
        assert not found["boxes"][row, number:].any()


def test_options_travel_as_parameters(client, protocol, image_input, scene):
    inputs = images(protocol, scene, name=image_input)
    all_of_them = client.infer("digits", inputs).as_numpy("scores")[0]
    threshold = float(np.median(all_of_them))
    above = client.infer("digits", inputs, parameters={"conf": str(threshold), "max_det": 2})
    assert above.as_numpy("num_detections").tolist() == [
        min(2, int((all_of_them > threshold).sum()))
    ]
    first = int(client.infer("digits", inputs).as_numpy("class_ids")[0, 0])
    only = client.infer("digits", inputs, parameters={"classes": first}).as_numpy("class_ids")
    assert set(only[0].tolist()) == {first}


def test_one_output_can_be_asked_for(client, protocol, image_input, scene):
    wanted = [protocol.InferRequestedOutput("boxes")]
    answer = client.infer("digits", images(protocol, scene, name=image_input), outputs=wanted)
    assert answer.as_numpy("boxes").shape[2] == 4
    assert answer.as_numpy("scores") is None


def test_a_raw_body_is_an_image(demo_server, scene):
    url = f"{demo_server.url}/v2/models/digits/infer"
    headers = {"Inference-Header-Content-Length": "0"}
    answer = httpx.post(url, content=scene, headers=headers).json()
    assert [output["name"] for output in answer["outputs"]] == OUTPUTS
    assert answer["outputs"][0]["data"][0] > 0


def test_tensors_of_the_same_model_are_tensors(client, protocol, demo_server, image_input):
    metadata = httpx.get(f"{demo_server.url}/v2/models/digits").json()
    shape = [1, *metadata["inputs"][0]["shape"][1:]]
    tensor = protocol.InferInput(image_input, shape, metadata["inputs"][0]["datatype"])
    tensor.set_data_from_numpy(np.zeros(shape, np.float32))
    answer = client.infer("digits", [tensor])
    expected = metadata["outputs"][0]
    assert answer.as_numpy(expected["name"]).shape[1:] == tuple(expected["shape"][1:])
