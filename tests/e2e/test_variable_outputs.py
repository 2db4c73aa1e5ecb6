"""Detectors whose outputs are rows [k, ...] of one image, over every protocol."""

import httpx
import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tests.built import build
from tests.engines.onnx_graph.test_normalise import bright

from fovea_engines.backends.registry import CPU_BACKENDS
from fovea_engines.build.plan import BuildPlan
from fovea_engines.engine import Engine
from fovea_engines.evaluation.samples import read_image
from fovea_preprocess.image import decode_image
from fovea_preprocess.preprocessor import Preprocessor

pytestmark = pytest.mark.real

# torchvision's takes [3, h, w], and the other uint8 [1, 3, h, w].
SHAPES = {
    "tv-fcos": {"boxes": [-1, 4], "labels": [-1], "scores": [-1]},
    "yolonas-flat": {"graph2_flat_predictions": [-1, 7]},
}


@pytest.fixture(scope="module", params=CPU_BACKENDS)
def repository(request, shared, tmp_path_factory):
    folder = tmp_path_factory.mktemp("variable") / "repository"
    for name in SHAPES:
        source = shared / "models" / "heads" / f"{name}.onnx"
        build(BuildPlan(source, name, folder, request.param, size=(416, 416)))
    return folder


def test_rows_are_served_whole(repository, shared, serve):
    server = serve(repository)
    image = shared / "data" / "bus.jpg"
    for name, shapes in SHAPES.items():
        url = f"{server.url}/v2/models/{name}"
        assert httpx.get(f"{url}/config").json()["max_batch_size"] == 0
        metadata = httpx.get(url).json()
        assert metadata["inputs"][0]["shape"] == [1, 3, 416, 416]
        assert {out["name"]: out["shape"] for out in metadata["outputs"]} == shapes

        with Engine.open(repository / name / "1") as engine:
            spec = engine.card.preprocess
            row = np.empty((1, *spec.row_shape), spec.dtype)
            Preprocessor(spec)(read_image(image), row[0])
            expected = engine.session.infer({engine.card.inputs[0].name: row})
        assert len(next(iter(expected.values()))) > 1
        for protocol, port in ((http_client, server.port), (grpc_client, server.grpc_port)):
            with protocol.InferenceServerClient(f"127.0.0.1:{port}") as client:
                datatype = metadata["inputs"][0]["datatype"]
                tensor = protocol.InferInput(metadata["inputs"][0]["name"], row.shape, datatype)
                tensor.set_data_from_numpy(row)
                answer = client.infer(name, [tensor])
            for output, rows in expected.items():
                np.testing.assert_array_equal(answer.as_numpy(output), rows)


def test_all_rows_of_an_image_are_answered(tmp_path, scene, serve):
    build(BuildPlan(bright(tmp_path / "m.onnx"), "bright", tmp_path / "repository"))
    server = serve(tmp_path / "repository")
    answer = httpx.post(server.predict_url("bright"), content=scene)
    assert answer.status_code == 200, answer.text
    [places] = answer.json()["images"][0]["tensors"]
    with Engine.open(tmp_path / "repository" / "bright" / "1") as engine:
        expected = engine.outputs_of(decode_image(scene).pixels)["out"]
    assert places["shape"] == list(expected.shape)
    assert places["data"] == expected.ravel().tolist()
    assert len(expected) > 1
