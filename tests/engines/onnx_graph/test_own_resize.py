"""torchvision's own resize: kept aspect, and SSDlite's stretching, on its exporter's files."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper
from tests.engines.build.test_head import plan
from tests.engines.noting import Noting

from fovea_engines.build.build import build
from fovea_engines.engine import Engine
from fovea_engines.evaluation.samples import read_image
from fovea_engines.inspect.inspection import read_model_file
from fovea_engines.onnx_graph.as_written import find_own_fit
from fovea_engines.results.options import PredictOptions
from fovea_preprocess.errors import InvalidOption

pytestmark = pytest.mark.slow

SIDE = 320


@pytest.fixture(scope="module")
def fcos(shared):
    return shared / "models" / "heads" / "tv-fcos.onnx"


@pytest.fixture(scope="module")
def stretching(fcos, tmp_path_factory):
    """The network with `fixed_size` in its transform, as torchvision's SSD and SSDlite have it."""
    model = onnx.load(fcos)
    [resize] = (node for node in model.graph.node if node.op_type == "Resize")
    resize.input[3] = "fixed"
    sizes = numpy_helper.from_array(np.array([1, 3, SIDE, SIDE]), "fixed")
    model.graph.initializer.append(sizes)
    path = tmp_path_factory.mktemp("ssd") / "ssd.onnx"
    onnx.save(model, path)
    return path


def fixed(path, height, width, tmp_path):
    """The same for images of one size."""
    model = onnx.load(path)
    for dim, length in zip(
        model.graph.input[0].type.tensor_type.shape.dim, (3, height, width), strict=True
    ):
        dim.dim_value = length
    onnx.save(model, tmp_path / "fixed.onnx")
    return tmp_path / "fixed.onnx"


def test_a_graph_shows_its_own_resize(fcos, stretching, shared, tmp_path):
    assert find_own_fit(onnx.load(fcos)) == "letterbox"
    assert find_own_fit(onnx.load(stretching)) == "stretch"
    for path, fit in ((fcos, "letterbox"), (stretching, "stretch")):
        assert find_own_fit(onnx.load(fixed(path, 480, 640, tmp_path))) == fit
        assert find_own_fit(onnx.load(fixed(path, 320, 320, tmp_path))) is None
    assert find_own_fit(onnx.load(shared / "models" / "yolov8n.onnx")) is None


@pytest.mark.parametrize("size", [None, (480, 640)])
def test_ssd_gets_stretched_images(stretching, shared, tmp_path, size):
    progress = Noting()
    card = build(plan(stretching, tmp_path, size=size), progress)
    assert (card.family, card.preprocess.fit) == ("torchvision", "stretch")
    assert "the resizing in its graph" in card.preprocess_from
    said = [note for note in progress.notes if "resizes images itself" in note]
    assert len(said) == (size is None)
    assert all("640x640" in note and "--size" in note for note in said)
    assert read_model_file(stretching).preprocess.fit == "stretch"


def test_others_keep_the_aspect(fcos, tmp_path):
    assert build(plan(fcos, tmp_path)).preprocess.fit == "letterbox"


def test_boxes_are_its_own_at_the_size_of_the_images(stretching, shared, tmp_path):
    pixels = read_image(shared / "data" / "coco64" / "val" / "000000001000.jpg")
    build(plan(stretching, tmp_path, size=pixels.shape[:2]))
    row = np.ascontiguousarray(pixels.transpose(2, 0, 1), np.float32) / 255
    names = ["boxes", "labels", "scores"]
    boxes, labels, scores = onnxruntime.InferenceSession(stretching).run(names, {"image": row})
    kept = (scores >= 0.25) & (boxes[:, 2:] > boxes[:, :2]).all(axis=1)
    with Engine.open(tmp_path / "models" / "m" / "1") as engine:
        found = engine.detect(pixels, PredictOptions(conf=0.25, max_det=1000))
    order = np.argsort(-scores[kept], kind="stable")
    assert len(found) == kept.sum() > 0
    np.testing.assert_allclose(found.scores, scores[kept][order], atol=1e-3)
    np.testing.assert_allclose(found.boxes, boxes[kept][order], atol=0.5)
    assert (found.class_ids == labels[kept][order]).all()


def test_a_square_image_tells_nothing_so_the_build_asks(stretching, tmp_path):
    source = fixed(stretching, 320, 320, tmp_path)
    with pytest.raises(InvalidOption, match=r"--preprocess family .* --preprocess stretched"):
        build(plan(source, tmp_path))
    card = build(plan(source, tmp_path, preprocess={"fit": "stretch"}))
    assert card.preprocess.fit == "stretch"
