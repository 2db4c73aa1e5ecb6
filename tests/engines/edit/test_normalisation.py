"""Adding a normalisation to a model, and dropping it again."""

import numpy as np
import onnx
import pytest
from tests.engines.edit.edits import difference, model, run

from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan
from fovea_engines.edit.normalisation import (
    Normalisation,
    add_normalisation,
    drop_normalisation,
)
from fovea_engines.engine import Engine
from fovea_engines.evaluation.samples import read_image
from fovea_engines.onnx_graph.own_normalisation import own_normalisation
from fovea_engines.onnx_graph.tensors import graph_inputs
from fovea_preprocess.errors import InvalidOption, UnsupportedModel

pytestmark = pytest.mark.slow

IMAGENET = "1/255,0.485:0.456:0.406,0.229:0.224:0.225"


@pytest.fixture
def pixels() -> np.ndarray:
    return np.random.default_rng(3).integers(0, 256, (1, 3, 240, 320), np.uint8)


@pytest.mark.parametrize("uint8", [True, False])
def test_a_face_detector_takes_bytes(shared, pixels, uint8):
    source = model(shared, "heads/ultraface-rfb-320")
    edited = add_normalisation(source, Normalisation.parse("1/128,127.0/128"), uint8=uint8)
    assert graph_inputs(edited.model)[0].dtype == ("uint8" if uint8 else "float32")
    assert difference(source, edited) < 1e-5
    raw = pixels if uint8 else pixels.astype(np.float32)
    want = run(source, {"input": ((pixels.astype(np.float32) - 127) / 128)})
    for name, found in run(edited.model, {"input": raw}).items():
        np.testing.assert_allclose(found, want[name], atol=1e-5)


def test_channels_have_their_own_numbers_and_what_is_added_can_be_dropped(shared, pixels):
    source = model(shared, "heads/ultraface-rfb-320")
    edited = add_normalisation(source, Normalisation.parse(IMAGENET), uint8=True)
    assert difference(source, edited) < 1e-5
    mean, std = np.reshape([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]], (2, 3, 1, 1))
    values = ((pixels / 255 - mean) / std).astype(np.float32)
    want = run(source, {"input": values})
    for name, found in run(edited.model, {"input": pixels}).items():
        np.testing.assert_allclose(found, want[name], atol=1e-4)

    dropped = drop_normalisation(edited.model)
    assert graph_inputs(dropped.model) == graph_inputs(source)
    assert difference(edited.model, dropped) == 0
    for name, found in run(dropped.model, {"input": values}).items():
        np.testing.assert_allclose(found, want[name], atol=1e-5)


def test_arithmetic_that_an_exporter_wrote_is_dropped(shared):
    source = model(shared, "heads/mmdeploy")
    edited = drop_normalisation(source)
    assert difference(source, edited) == 0
    taken = [n.op_type for n in edited.model.graph.node if "input" in n.input]
    assert taken == ["Slice"] * len(taken), "the body begins with a Focus layer"


def test_what_cannot_be_normalised_is_refused(shared):
    with pytest.raises(UnsupportedModel, match=r"/model\.0/conv/Conv"):
        drop_normalisation(model(shared, "yolov10n"))
    with pytest.raises(UnsupportedModel, match="--drop-normalize"):
        add_normalisation(model(shared, "heads/tf-od"), Normalisation.parse("1/255"))


@pytest.mark.parametrize(
    "text", ["", "a", "1/0", "0", "1,0,0", "1,2,3,4", "1:2", "1,1:2", "nan", "1e999", "1,inf"]
)
def test_what_is_no_normalisation_is_refused(shared, text):
    source = model(shared, "heads/ultraface-rfb-320")
    with pytest.raises(InvalidOption):
        add_normalisation(source, Normalisation.parse(text))


@pytest.mark.parametrize("numbers", ["1/255", IMAGENET, "1/128,127.0/128"])
def test_a_model_that_normalises_itself_gets_bytes(shared, numbers):
    source = model(shared, "heads/yolov6-clothes")
    assert own_normalisation(source) == {}
    edited = add_normalisation(source, Normalisation.parse(numbers)).model
    own = own_normalisation(edited)
    assert (own["scale"], own["mean"], own["std"]) == (1.0, (0.0,) * 3, (1.0,) * 3)


def test_other_arithmetic_in_front_is_none(shared):
    for file in ("mmdeploy", "paddle", "rfdetr", "tf-od", "tv-fasterrcnn"):
        assert own_normalisation(model(shared, f"heads/{file}")) == {}


def test_a_build_finds_the_same_boxes_after_it(shared, tmp_path):
    source = model(shared, "heads/yolov6-clothes")
    onnx.save(source, tmp_path / "plain.onnx")
    onnx.save(
        add_normalisation(source, Normalisation.parse("1/255")).model, tmp_path / "front.onnx"
    )
    pixels, found = read_image(shared / "data" / "bus.jpg"), {}
    for name in ("plain", "front"):
        build(BuildPlan(tmp_path / f"{name}.onnx", name, tmp_path / "models", "onnxruntime"))
        folder = tmp_path / "models" / name / "1"
        onnx.checker.check_model(folder / "model.onnx")
        with Engine.open(folder) as engine:
            found[name] = engine.detect(pixels)
    assert len(found["plain"]) == 5
    np.testing.assert_allclose(found["front"].boxes, found["plain"].boxes, atol=0.05)
    triton = tmp_path / "triton" / "front" / "1"
    triton.mkdir(parents=True)
    (triton / "model.onnx").symlink_to(tmp_path / "front.onnx")
    with Engine.open(triton) as engine:
        np.testing.assert_allclose(engine.detect(pixels).boxes, found["plain"].boxes, atol=0.05)
