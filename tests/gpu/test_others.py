"""Plans that others made: Ultralytics' header, outputs of other types, another TensorRT."""

import json

import numpy as np
import pytest
from onnx import TensorProto, helper
from tests.drawn import draw
from tests.engines.fake_session import save

from fovea_engines.backends.tensorrt.builder import build_plan
from fovea_engines.engine import Engine
from fovea_engines.repository.options import BuilderOptions, Profile
from fovea_preprocess.errors import BackendUnavailable

pytestmark = [pytest.mark.real, pytest.mark.timeout(1800)]


def test_an_engine_of_ultralytics_finds_what_its_source_finds(runtime, tiny, tmp_path):
    """It takes four rows, and no fewer: batches are padded."""
    source = tmp_path / "source" / "1"
    source.mkdir(parents=True)
    (source / "model.onnx").write_bytes(tiny.model.read_bytes())
    plan = build_plan(tiny.model.read_bytes(), BuilderOptions((Profile(4, 4, 4),)), runtime)
    with Engine.open(source) as engine:
        want = engine.detect(draw(64, 80, 0))
        side = engine.card.preprocess.height
        names = dict(enumerate(engine.card.labels or ()))
    header = {"task": "detect", "stride": 32, "imgsz": [side, side], "batch": 4}
    if names:
        header["names"] = {str(key): name for key, name in names.items()}
    text = json.dumps(header).encode()
    folder = tmp_path / "theirs" / "1"
    folder.mkdir(parents=True)
    (folder / "model.engine").write_bytes(len(text).to_bytes(4, "little") + text + plan.data)
    with Engine.open(folder) as engine:
        have = engine.detect(draw(64, 80, 0))
    assert len(want)
    np.testing.assert_array_equal(have.class_ids, want.class_ids)
    np.testing.assert_allclose(have.boxes, want.boxes, atol=0.5)


@pytest.fixture
def numbers(runtime, tmp_path):
    """A folder with a plan whose output is int64."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 5])
    y = helper.make_tensor_value_info("y", TensorProto.INT64, ["batch", 1])
    node = helper.make_node("ArgMax", ["x"], ["y"], axis=1)
    model = save(tmp_path / "m.onnx", helper.make_graph([node], "largest", [x], [y]))
    plan = build_plan(model.read_bytes(), BuilderOptions((Profile(1, 2, 4),)), runtime)
    folder = tmp_path / "numbers" / "1"
    folder.mkdir(parents=True)
    (folder / "model.plan").write_bytes(plan.data)
    return folder


def test_a_plan_with_int64_outputs(numbers):
    x = np.random.default_rng(0).random((1, 5), np.float32)
    with Engine.open(numbers) as engine:
        [found] = engine.session.infer({"x": x}).values()
    assert found.dtype == np.int64
    np.testing.assert_array_equal(found.ravel(), x.argmax(axis=1))


def test_a_plan_of_another_tensorrt_is_refused_with_what_to_do(numbers, runtime):
    plan = bytearray((numbers / "model.plan").read_bytes())
    plan[24] -= 1
    (numbers / "model.plan").write_bytes(plan)
    with pytest.raises(BackendUnavailable, match=rf"was made by .*{runtime.version} cannot load"):
        Engine.open(numbers)
