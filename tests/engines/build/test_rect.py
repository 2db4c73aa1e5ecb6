"""Engines that take several sizes, and letterbox each image to the smallest that holds it."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import cv2
import numpy as np
import onnx
import pytest
from tests.engines.tiny import tiny_detector

from fovea_engines.build.acceptance import MIN_QUALITY, rejection
from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan, choices
from fovea_engines.edit.any_size import any_size
from fovea_engines.engine import Engine
from fovea_engines.evaluation.reference import ReferenceSession
from fovea_engines.evaluation.samples import read_image, sample_images
from fovea_engines.onnx_graph.load import load
from fovea_engines.quantization.calibrate import Images, Variety
from fovea_engines.quantization.ranges import RANGES_FILE, Ranges
from fovea_engines.repository.accuracy import Accuracy
from fovea_engines.repository.card import EngineCard
from fovea_engines.results.options import PredictOptions
from fovea_preprocess.errors import InvalidOption, UnsupportedModel

pytestmark = pytest.mark.slow

SIDES = [100, 150, 200, 250, 300, 350, 400, 450, 500, 550]
RATIOS = [(600, side) for side in SIDES] + [(side, 600) for side in SIDES]


@pytest.fixture
def folder(demo_rect):
    return demo_rect / "digits" / "1"


def photograph(height, width):
    [(_, pixels), *_] = sample_images(None, 1)
    return np.ascontiguousarray(np.tile(pixels, (3, 3, 1))[:height, :width])


def test_the_card_has_the_agreement_at_each_size(folder):
    card = EngineCard.read(folder / "card.json")
    assert card.inputs[0].shape == (-1, 3, -1, -1)
    assert (card.preprocess.height, card.preprocess.width, card.preprocess.step) == (320, 320, 32)
    assert {"96x320", "320x96"} <= card.sizes.keys(), "the widest and the highest"
    assert all(found.box_px < 0.01 for found in card.sizes.values())
    assert "| 96x320 |" in (folder / "card.md").read_text()
    assert rejection(card, 0.01) is None
    worse = {"96x320": replace(card.sizes["96x320"], quality=0.1)}
    reason = rejection(replace(card, precision="int8", sizes=worse), 0.01)
    assert reason.startswith("INT8 at 96x320 has an agreement of 0.100")
    # So is a loss of accuracy to one size.
    figures = Accuracy(9, 0.4, 0.5, {}, {})
    accuracy = {"fp32": figures, "fp32 at one size": replace(figures, map50_95=0.9)}
    lossy = replace(card, accuracy=accuracy)
    assert "0.500" in rejection(lossy, 0.4)
    assert rejection(lossy, 0.6) is None


def test_an_image_of_each_aspect_ratio_is_what_the_source_computes_at_its_size(folder, demo_model):
    source = any_size(load(demo_model).proto)
    sizes = set()
    with Engine.open(folder) as engine:
        for width, height in RATIOS:
            pixels = photograph(height, width)
            view = engine.for_image(pixels)
            size = view.card.preprocess.height, view.card.preprocess.width
            sizes.add(size)
            row, back = view.preprocessor.row(pixels)
            names = [spec.name for spec in view.card.outputs]
            want = dict(zip(names, ReferenceSession(source.at(size)).run(names, row), strict=True))
            found = engine.predict(pixels, PredictOptions(conf=0.05))
            expected = view.decode(want, 0, PredictOptions(conf=0.05)).to_source(back)
            assert len(found) == len(expected)
            np.testing.assert_allclose(found.boxes, expected.boxes, atol=0.05)
            np.testing.assert_allclose(found.scores, expected.scores, atol=1e-4)
    assert len(sizes) > 10


def test_calls_of_several_sizes_at_once_stay_right(folder):
    wide, high = photograph(200, 600), photograph(600, 200)
    with Engine.open(folder) as engine:
        first = [engine.outputs_of(pixels, alone=False) for pixels in (wide, high)]
        with ThreadPoolExecutor(4) as pool:
            calls = [
                pool.submit(engine.outputs_of, each, alone=n % 3 == 0)
                for n in range(40)
                for each in (wide, high)
            ]
        for n, call in enumerate(calls):
            for name, values in call.result().items():
                np.testing.assert_allclose(values, first[n % 2][name], atol=1e-2, rtol=1e-3)


def test_a_square_image_is_what_a_build_of_one_size_finds(folder, demo_repository):
    square = photograph(500, 500)
    with Engine.open(folder) as engine, Engine.open(demo_repository / "digits" / "1") as other:
        assert engine.for_image(square).card.preprocess == other.card.preprocess
        found, want = engine.detect(square), other.detect(square)
    np.testing.assert_allclose(found.boxes, want.boxes, atol=0.05)


def test_int8_is_calibrated_and_judged_on_images_at_their_own_sizes(demo_model, tmp_path):
    scenes = tmp_path / "scenes"
    scenes.mkdir()
    for n in (1, 2):
        scene = cv2.imread(str(demo_model.with_name(f"scene-{n}.jpg")))
        for name, part in ("whole", scene), ("wide", scene[200:420]), ("high", scene[:, 100:400]):
            cv2.imwrite(str(scenes / f"{name}-{n}.png"), part)
    plan = BuildPlan(demo_model, "digits", tmp_path, "onnxruntime", rect=True, precision="int8")
    card = build(replace(plan, calibration=scenes, keep_float=()))
    assert card.precision == "int8"
    assert {"128x320", "320x224", "256x320"} <= card.sizes.keys()
    assert min(found.quality for found in card.sizes.values()) >= MIN_QUALITY["int8"]
    folder = tmp_path / "digits" / "1"
    made = onnx.load(folder / "model.onnx").graph
    assert "QuantizeLinear" in {node.op_type for node in made.node}
    images = Images.of(scenes, card.preprocess)
    seen = {row.shape[2:] for row in images.rows(Variety(card.preprocess))}
    assert seen == {(128, 320), (320, 224), (256, 320)}
    assert Ranges.read(folder / RANGES_FILE).origin.preprocess == card.preprocess.digest
    with Engine.open(folder) as engine:
        assert len(engine.detect(read_image(scenes / "wide-1.png")))


def test_what_cannot_take_several_sizes_is_refused(demo_model, tmp_path):
    plan = BuildPlan(demo_model, "digits", tmp_path, "onnxruntime", rect=True)
    with pytest.raises(InvalidOption, match="--nms-tail"):
        replace(plan, nms_tail=True)
    for backend in ("openvino", "tensorrt-rtx"):
        with pytest.raises(InvalidOption, match="onnxruntime"):
            replace(plan, backend=backend)
    with pytest.raises(InvalidOption):
        build(replace(plan, preprocess={"fit": "stretch"}))
    source = tiny_detector(tmp_path / "tiny.onnx")
    with pytest.raises(UnsupportedModel, match=r"dynamic=True"):
        build(replace(plan, source=source, name="tiny"))
    assert not (tmp_path / "tiny").exists()
    # So auto chooses from the others.
    assert choices("auto", "fp32", rect=True) == (("onnxruntime", "fp32"),)
    assert {name for name, _ in choices("auto", "auto", rect=True)} == {"onnxruntime"}
    [(backend, _)] = choices("auto", "bf16", rect=True)
    with pytest.raises(InvalidOption, match="onnxruntime"):
        replace(plan, backend=backend)
