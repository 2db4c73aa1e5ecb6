"""DEIMv2 of `../shared/models/more`, in both its forms, against the arithmetic of its programs."""

import numpy as np
import onnx
import onnxruntime
import pytest
from PIL import Image
from tests.conftest import SHARED

from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan
from fovea_engines.engine import Engine
from fovea_engines.evaluation.observe import recognise_graph
from fovea_engines.evaluation.samples import read_image
from fovea_engines.heads.presets import default_preprocess, read_preprocess
from fovea_engines.results.options import PredictOptions
from fovea_engines.session import TensorSpec
from fovea_preprocess.errors import InvalidOption
from fovea_preprocess.preprocessor import Preprocessor

SOURCE, SIDE, CONF = SHARED / "models" / "more" / "deimv2-atto-int8.onnx", 320, 0.25
MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
WAYS = ("family", "mean-std", "letterboxed", "letterboxed-mean-std")

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not SOURCE.is_file(), reason=f"{SOURCE} is not there"),
]


@pytest.fixture(scope="module")
def batched(tmp_path_factory):
    """The same file in the form of DEIMv2's own export, which has the batch's axis."""
    model = onnx.load(SOURCE)
    for node in model.graph.node:
        if node.op_type == "Squeeze" and node.output[0] in ("labels", "boxes", "scores"):
            node.op_type, _ = "Identity", node.input.pop()
    for output in model.graph.output:
        output.type.tensor_type.shape.dim.insert(
            0, onnx.TensorShapeProto.Dimension(dim_param="batch")
        )
    path = tmp_path_factory.mktemp("deimv2") / "batched.onnx"
    onnx.save(model, path)
    return path


@pytest.fixture(scope="module", params=["squeezed", "batched"])
def source(request):
    return SOURCE if request.param == "squeezed" else request.getfixturevalue("batched")


def own_input(pixels, way):
    """The input by onnx_inf.py; torch_inf.py stretches. And the place of the image, and ratios."""
    image = Image.fromarray(pixels)
    ratio = min(SIDE / image.width, SIDE / image.height)
    place, ratios = (0, 0), (SIDE / image.width, SIDE / image.height)
    whole = image.resize((SIDE, SIDE), Image.BILINEAR)
    if way.startswith("letterboxed"):
        sides = int(image.width * ratio), int(image.height * ratio)
        place, ratios = ((SIDE - sides[0]) // 2, (SIDE - sides[1]) // 2), (ratio, ratio)
        whole = Image.new("RGB", (SIDE, SIDE))
        whole.paste(image.resize(sides, Image.BILINEAR), place)
    row = np.asarray(whole) / 255
    if way.endswith("mean-std"):
        row = (row - MEAN) / STD
    return row.transpose(2, 0, 1)[None].astype(np.float32), place, ratios


def images(shared):
    val = sorted((shared / "data" / "coco64" / "val").glob("*.jpg"))
    return [read_image(path) for path in (shared / "data" / "bus.jpg", *val[:15])]


@pytest.mark.parametrize("way", WAYS)
def test_inputs_are_those_of_its_own_programs(shared, way):
    inputs = [TensorSpec("images", "float32", (-1, 3, SIDE, SIDE))]
    spec = default_preprocess("rtdetr", inputs, {}, trained=read_preprocess(way))
    for pixels in images(shared):
        row = np.empty((1, 3, SIDE, SIDE), np.float32)
        Preprocessor(spec)(pixels, row[0])
        np.testing.assert_allclose(row, own_input(pixels, way)[0], atol=1e-5)


# What comes before the network, and the axis of its outputs, have nothing to do with one another.
@pytest.mark.parametrize(
    ("source", "way"), [("squeezed", "family"), ("batched", "letterboxed")], indirect=["source"]
)
def test_rows_are_those_of_its_own_programs(shared, source, tmp_path, way):
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "bus.jpg").symlink_to(shared / "data" / "bus.jpg")
    given = {"preprocess": read_preprocess(way), "images": tmp_path / "images"}
    assert build(BuildPlan(source, "m", tmp_path, "onnxruntime", **given)).family == "rtdetr"
    session, rows = onnxruntime.InferenceSession(SOURCE), 0
    with Engine.open(tmp_path / "m" / "1") as engine:
        for pixels in images(shared):
            row, place, ratios = own_input(pixels, way)
            feeds = {"images": row, "orig_target_sizes": np.array([[SIDE, SIDE]])}
            labels, boxes, scores = session.run(["labels", "boxes", "scores"], feeds)
            order = np.argsort(-scores, kind="stable")[: np.count_nonzero(scores >= CONF)]
            found = engine.detect(pixels, PredictOptions(conf=CONF, max_det=1000))
            edges = np.array([pixels.shape[1], pixels.shape[0]] * 2)
            want = ((boxes[order] - [*place, *place]) / [*ratios, *ratios]).clip(0, edges)
            np.testing.assert_allclose(found.scores, scores[order], atol=1e-4)
            np.testing.assert_allclose(found.boxes, want, atol=0.05)
            assert (found.class_ids == labels[order]).all()
            rows += len(order)
    assert rows > 50


def test_a_build_asks_and_names_every_way(source, tmp_path):
    with pytest.raises(InvalidOption) as asked:
        build(BuildPlan(source, "m", tmp_path, "onnxruntime"))
    for way in WAYS:
        assert f"--preprocess {way} (it finds" in str(asked.value)


def test_sizes_beside_the_image_are_no_torchvision():
    found = recognise_graph(onnx.load(SOURCE))[0]
    assert found.family == "rtdetr"
    against = {one.family: one.against for one in found.verdicts}
    assert "orig_target_sizes" in against["torchvision"]
