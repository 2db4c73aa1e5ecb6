"""Spoilt calibration sets: each build fails with its cause, and what was served stays."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan
from fovea_engines.build.prepare import prepare
from fovea_engines.engine import Engine
from fovea_engines.evaluation.samples import read_image
from fovea_engines.heads.presets import PRESETS, read_preprocess
from fovea_engines.progress import Progress
from fovea_engines.quantization.calibrate import find_ranges
from fovea_engines.quantization.ranges import RANGES_FILE
from fovea_engines.repository.card import EngineCard
from fovea_engines.repository.repository import FAILED_FOLDER, ModelRepository
from fovea_preprocess.errors import BuildError, Disagreement, InvalidOption, UnsupportedModel

pytestmark = pytest.mark.real


def changed(folder: Path, target: Path, change: Callable[[np.ndarray], np.ndarray]) -> Path:
    """The images of a folder, each changed, as PNG files of another."""
    target.mkdir()
    for file in folder.iterdir():
        pixels = cv2.imread(str(file)).astype(np.float32)
        saved = change(pixels).clip(0, 255).astype(np.uint8)
        assert cv2.imwrite(str(target / f"{file.stem}.png"), saved)
    return target


def scaled(ranges: Path, target: Path, factor: float, spare: str = "") -> Path:
    """A calibration of the same origin with every range but one scaled."""
    document = json.loads(ranges.read_text())
    for name, (low, high) in document["tensors"].items():
        if name != spare:
            document["tensors"][name] = (low * factor, high * factor)
    target.write_text(json.dumps(document))
    return target


@pytest.fixture(scope="module")
def built(deep_detector, images, tmp_path_factory) -> BuildPlan:
    """The plan of an INT8 engine that lies in its repository; not to be written to."""
    repository = tmp_path_factory.mktemp("sabotage") / "r"
    plan = BuildPlan(
        deep_detector, "d", repository, precision="int8", calibration=images, images=images,
        keep_float=(),
    )  # fmt: skip
    build(plan)
    return plan


@pytest.fixture
def served(built, tmp_path) -> BuildPlan:
    """The same in a repository of its own."""
    shutil.copytree(built.repository, tmp_path / "r")
    return replace(built, repository=tmp_path / "r")


def detections(plan: BuildPlan) -> np.ndarray:
    with Engine.open(plan.repository / plan.name / "1") as engine:
        return engine.detect(read_image(plan.images / "0.png")).boxes


BLACK = np.zeros_like
IMAGENET = PRESETS["imagenet"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (BLACK, "8 of 8 calibration images are of one colour"),
        (lambda x: x / 255, "8 of 8 calibration images are of one colour"),
        (
            lambda x: (x / 255 - IMAGENET["mean"]) / IMAGENET["std"],
            "8 of 8 calibration images are of one colour",
        ),
        (lambda x: x / 30, "measured on dark images, or with another preprocessing"),
    ],
    ids=["black", "saved from 0 to 1", "saved normalised", "dark"],
)
def test_spoilt_images_are_refused(served, tmp_path, change, says):
    before = detections(served)
    spoilt = changed(served.calibration, tmp_path / "spoilt", change)
    with pytest.raises((BuildError, InvalidOption), match=says):
        build(replace(served, calibration=spoilt))
    # Without images to compare with, too.
    with pytest.raises((BuildError, InvalidOption), match=says):
        build(replace(served, calibration=spoilt, images=None))
    assert ModelRepository(served.repository).versions("d") == (1,)
    assert (detections(served) == before).all()
    assert not list(served.repository.glob(".*staging*"))


@pytest.mark.parametrize(("factor", "spare"), [(0.05, ""), (0.05, "images"), (50, "images")])
def test_tampered_ranges_are_refused(served, tmp_path, factor, spare):
    """Of the same origin, so that only what comes of them can tell."""
    before = detections(served)
    known = served.repository / "d" / "1" / RANGES_FILE
    spoilt = scaled(known, tmp_path / "spoilt.json", factor, spare)
    says = r"INT8 agrees 0\." if spare else "calibration saw values up to 0.05 at the model's input"
    with pytest.raises(Disagreement, match=says):
        build(replace(served, calibration=spoilt))
    assert ModelRepository(served.repository).versions("d") == (1,)
    assert (detections(served) == before).all()
    failed = served.repository / "d" / FAILED_FOLDER
    assert failed.exists() == bool(spare)
    if spare:
        card = EngineCard.read(failed / "card.json")
        assert card.refused.startswith("INT8 agrees 0.")
        assert f"**REFUSED**: {card.refused}" in (failed / "card.md").read_text()
        assert card.agreement.missed > 0


def test_images_without_anything_to_find_prove_nothing(served, tmp_path):
    """The last layer's scores fall under the threshold: the source finds nothing, nor does INT8."""
    model = onnx.load(served.source)
    for weight in model.graph.initializer:
        if weight.name in ("w8", "w16", "w32"):
            values = numpy_helper.to_array(weight).copy()
            values[4:] = -np.abs(values[4:]) * 4
            weight.CopyFrom(numpy_helper.from_array(values, weight.name))
    onnx.save(model, tmp_path / "blind.onnx")
    with pytest.raises(Disagreement, match=r"finds nothing on the 8 images.*preprocessing"):
        build(replace(served, source=tmp_path / "blind.onnx"))
    assert ModelRepository(served.repository).versions("d") == (1,)


def test_a_real_detector_with_the_wrong_preprocessing(shared, tmp_path):
    """yolox_nano sees BGR from 0 to 255; `yolo` is RGB from 0 to 1."""
    few = tmp_path / "few"
    few.mkdir()
    for file in sorted((shared / "data" / "coco64" / "calibration").glob("*.jpg"))[:3]:
        (few / file.name).symlink_to(file)
    plan = BuildPlan(
        shared / "models" / "yolox_nano.onnx", "yolox", tmp_path / "r", precision="int8",
        calibration=few, images=few, keep_float=(),
    )  # fmt: skip
    build(replace(plan, precision="fp32"))
    wrong, prepared = read_preprocess("yolo"), prepare(plan, Progress())
    spec = replace(prepared.preprocess, **wrong)
    ranges, _ = find_ranges(plan, replace(prepared, preprocess=spec), Progress())
    (tmp_path / "wrong.json").write_bytes(ranges.encode())
    with pytest.raises(InvalidOption, match=r"wrong\.json was measured with another preproc"):
        build(replace(plan, calibration=tmp_path / "wrong.json"))
    # As if its origin had been altered as well: what the input reaches tells.
    right = prepared.preprocess.digest
    forged = replace(ranges, origin=replace(ranges.origin, preprocess=right))
    (tmp_path / "forged.json").write_bytes(forged.encode())
    with pytest.raises(Disagreement, match=r"up to 1 at .* hold 255: .* another preprocessing"):
        build(replace(plan, calibration=tmp_path / "forged.json"))
    # And with the whole build told wrongly, the source is blind.
    with pytest.raises(UnsupportedModel, match=r"--preprocess is wrong: .* finds 0 objects"):
        build(replace(plan, preprocess=wrong))
    black = changed(few, tmp_path / "black", BLACK)
    with pytest.raises(InvalidOption, match="3 of 3 calibration images are of one colour"):
        build(replace(plan, calibration=black))
    assert ModelRepository(tmp_path / "r").versions("yolox") == (1,)
    with Engine.open(tmp_path / "r" / "yolox" / "1") as engine:
        assert len(engine.detect(read_image(shared / "data" / "bus.jpg"))) >= 3
