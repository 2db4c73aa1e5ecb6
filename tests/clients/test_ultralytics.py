"""Ultralytics' own client of Triton, as its wheel has it, gets boxes from what is served here."""

import ast
import importlib.util
import shutil
import sys
from pathlib import Path

import httpx
import numpy as np
import pytest
from tests.built import build
from tests.serving import RunningServer, start_server

from fovea_engines.build.plan import BuildPlan
from fovea_engines.engine import Engine
from fovea_engines.results.options import PredictOptions
from fovea_preprocess.image import decode_image

pytestmark = pytest.mark.real

CLIENT = Path(sys.prefix) / "clients" / "ultralytics" / "utils" / "triton.py"


@pytest.fixture(scope="module")
def remote_model():
    """Its class, without the package around it, which wants torch."""
    if not CLIENT.exists():
        pytest.skip(f"{CLIENT} is absent: `make test-real` installs it")
    spec = importlib.util.spec_from_file_location("ultralytics_triton", CLIENT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.TritonRemoteModel


@pytest.fixture(scope="module")
def repository(shared, tmp_path_factory):
    """yolov8n, built; and its file as Ultralytics' guide lays it out for Triton."""
    repository = tmp_path_factory.mktemp("ultralytics") / "models"
    source = shared / "models" / "yolov8n.onnx"
    build(BuildPlan(source=source, name="yolov8n", repository=repository))
    folder = repository / "as_in_the_guide"
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").touch()
    shutil.copy(source, folder / "1" / "model.onnx")
    return repository


@pytest.fixture(scope="module")
def engine(repository):
    """The built one, opened, to letterbox and to decode with."""
    with Engine.open(repository / "yolov8n" / "1") as engine:
        yield engine


@pytest.fixture(scope="module")
def server(repository, tmp_path_factory):
    server = start_server(repository, tmp_path_factory.mktemp("log"))
    yield server
    assert server.stop() == 0


@pytest.mark.parametrize("scheme", ["http", "grpc"])
@pytest.mark.parametrize("name", ["yolov8n", "as_in_the_guide"])
def test_boxes(remote_model, engine, server: RunningServer, shared, scheme, name):
    image = (shared / "data" / "bus.jpg").read_bytes()
    port = server.port if scheme == "http" else server.grpc_port
    model = remote_model(f"{scheme}://127.0.0.1:{port}/{name}")
    names = model.metadata["names"]  # a dict; Ultralytics takes its text as well
    assert (names if isinstance(names, dict) else ast.literal_eval(names))[0] == "person"
    assert model.metadata["task"] == "detect"

    batch = np.empty((1, *engine.preprocessor.spec.row_shape), np.float32)
    back = engine.preprocessor(decode_image(image).pixels, batch[0])
    outputs = dict(zip(model.output_names, model(batch), strict=True))
    found = engine.head.decode(outputs, 0, PredictOptions())
    boxes = back.boxes_to_source(found.boxes)

    answer = httpx.post(server.predict_url("yolov8n"), content=image).json()
    expected = answer["images"][0]["detections"]
    assert len(expected) >= 4
    assert [engine.labels[n] for n in found.class_ids] == [e["class_name"] for e in expected]
    corners = [list(each["box"].values()) for each in expected]
    np.testing.assert_allclose(boxes, corners, atol=1)
    np.testing.assert_allclose(found.scores, [each["score"] for each in expected], atol=0.01)
