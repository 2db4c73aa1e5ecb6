"""From images to ranges: what is measured, what is refused, and when it is measured again."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import get_args

import cv2
import numpy as np
import onnx
import onnxruntime
import psutil
import pytest
from tests.drawn import draw
from tests.engines.noting import Noting
from tests.engines.tiny import SIZE, constant, save, tiny_network

from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan
from fovea_engines.build.prepare import prepare
from fovea_engines.engine import Engine
from fovea_engines.evaluation.samples import read_image
from fovea_engines.heads.presets import PRESETS, read_preprocess
from fovea_engines.progress import Progress
from fovea_engines.quantization.calibrate import MAX_IMAGES, Images, Variety, calibrate, find_ranges
from fovea_engines.quantization.calibrators import PERCENTILE, Histogram
from fovea_engines.quantization.ranges import RANGES_FILE, Method, Origin, Ranges
from fovea_engines.repository.repository import ModelRepository
from fovea_preprocess.errors import (
    BuildError,
    Disagreement,
    InvalidImage,
    InvalidOption,
    NotFound,
    UnsupportedModel,
)
from fovea_preprocess.preprocessor import Preprocessor
from fovea_preprocess.spec import PreprocessSpec

pytestmark = pytest.mark.slow


SPEC = PreprocessSpec(height=SIZE, width=SIZE)


def measured(model: Path, folder: Path, method="minmax", progress=None) -> Ranges:
    images = Images.of(folder, SPEC)
    origin = Origin("model", SPEC.digest, images.digest, method)
    return calibrate(onnx.load(model), images, origin, progress or Progress())


def image(path: Path, pixels: np.ndarray) -> None:
    assert cv2.imwrite(str(path), pixels)


def test_ranges_are_those_of_the_preprocessor_that_serves(network, images):
    shown = onnx.load(network)
    names = ["images", *(f"r.{i}" for i in range(6))]
    for name in names[1:]:
        shown.graph.output.add(name=name)
    session = onnxruntime.InferenceSession(
        shown.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    row = np.empty((1, *SPEC.row_shape), np.float32)
    seen = {name: Histogram() for name in names}
    for file in sorted(images.iterdir()):
        Preprocessor(SPEC)(read_image(file), row[0])
        found = dict(zip(names[1:], session.run(names[1:], {"images": row}), strict=True))
        for name, values in ({"images": row} | found).items():
            seen[name].add(values)
    for method in get_args(Method):
        progress = Noting()
        ranges = measured(network, images, method, progress)
        assert progress.counts == [(done, 8) for done in range(1, 9)]
        assert list(ranges.tensors) == names
        assert ranges.count == 8
        for name, one in seen.items():
            high = {
                "minmax": one.high,
                "entropy": one.entropy(),
                "percentile": one.percentile(PERCENTILE),
                "mse": one.squared_error(),
            }
            assert ranges.tensors[name] == pytest.approx((0, high[method]), rel=1e-5)


def test_memory_does_not_grow_with_the_images(tmp_path):
    """An image is .3 MB as the input and 5 MB in the layers: 100 of them must not be held."""
    model = tiny_network(tmp_path / "m.onnx", depth=6, size=160)
    spec = replace(SPEC, height=160, width=160)
    for seed in range(20):
        image(tmp_path / f"{seed}.png", draw(64, 64, seed))
    twenty = Images.of(tmp_path, spec)
    origin, graph = Origin("", "", "", "percentile"), onnx.load(model)
    calibrate(graph, twenty, origin, Progress())
    process = psutil.Process()
    before = process.memory_info().rss
    largest = []

    class Watching(Progress):
        def each(self, things, total):
            for thing in things:
                yield thing
                largest.append(process.memory_info().rss)

    calibrate(graph, replace(twenty, files=twenty.files * 5), origin, Watching())
    assert len(largest) == 100
    # Both runs hold one session; growth within the second is what images leave behind.
    assert largest[-1] - largest[20] < 8e6
    assert max(largest) - before < 100e6


def test_at_most_a_thousand_images_are_taken_evenly(tmp_path):
    for number in range(1200):
        (tmp_path / f"{number:04}.jpg").write_bytes(b"%d" % number)
    names = [file.name for file in Images.of(tmp_path, SPEC).files]
    assert len(names) == MAX_IMAGES == 1000
    assert (names[0], names[-1]) == ("0000.jpg", "1199.jpg")
    assert names == sorted(set(names))
    assert max(np.diff([int(name[:4]) for name in names])) == 2


@pytest.mark.parametrize("colour", [(255, 255, 255), (0, 0, 255), (30, 140, 200)])
def test_scenes_of_one_colour_are_refused(network, tmp_path, colour):
    for number in range(4):
        flat = np.full((48, 64, 3), colour, np.uint8)
        # As a sensor sees it: noise of a level or so.
        noise = np.random.default_rng(number).integers(-1, 2, flat.shape)
        image(tmp_path / f"{number}.png", np.clip(flat + noise, 0, 255).astype(np.uint8))
    with pytest.raises(InvalidOption, match="4 of 4"):
        measured(network, tmp_path)
    for number in range(4, 8):
        image(tmp_path / f"{number}.png", draw(48, 64, number))
    assert measured(network, tmp_path).count == 8


def test_what_cannot_be_measured_is_named(network, images, tmp_path):
    """A damaged image, a tensor that overflows, and a network that does not run."""
    shutil.copytree(images, tmp_path / "p")
    whole = (tmp_path / "p" / "3.png").read_bytes()
    (tmp_path / "p" / "3.png").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InvalidImage, match=r"p/3\.png"):
        measured(network, tmp_path / "p")
    model = onnx.load(network)
    [weight] = (w for w in model.graph.initializer if w.name == "w.2")
    weight.CopyFrom(constant("w.2", np.full((8, 8, 3, 3), 3e38, np.float32)))
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(BuildError, match=r"'r\.2'"):
        measured(tmp_path / "m.onnx", images)
    nodes = [
        onnx.helper.make_node("Reshape", ["images", "shape"], ["wide"]),
        onnx.helper.make_node("Conv", ["wide", "w"], ["out"]),
    ]
    weights = [
        constant("shape", np.array([2, 3, 7, -1])),
        constant("w", np.zeros((1, 3, 1, 1), np.float32)),
    ]
    shapes = [("images", ["batch", 3, SIZE, SIZE])], [("out", ["b", 1, "h", "w"])]
    with pytest.raises(BuildError):
        measured(save(tmp_path / "m.onnx", nodes, *shapes, weights), images)


@pytest.fixture(scope="module")
def calibrated(network, images, tmp_path_factory) -> BuildPlan:
    """The plan of an INT8 engine that lies in its repository; not to be built again."""
    repository = tmp_path_factory.mktemp("calibrated") / "r"
    plan = BuildPlan(
        network, "net", repository, "onnxruntime", precision="int8", calibration=images
    )
    assert not build(plan).calibration.reused
    return plan


def images_shown(plan: BuildPlan) -> int:
    """How many images it takes to find the ranges of a plan; 0 when they are known."""
    progress = Noting()
    _, reused = find_ranges(plan, prepare(plan, progress), progress)
    assert reused == (not progress.counts)
    return len(progress.counts)


def test_ranges_are_used_again_when_nothing_differs(calibrated, tmp_path):
    assert images_shown(calibrated) == 0
    for file in calibrated.calibration.iterdir():
        shutil.copy(file, tmp_path / f"copy-{file.name}")
    assert images_shown(replace(calibrated, calibration=tmp_path)) == 0
    assert images_shown(replace(calibrated, max_batch=4, backend="openvino")) == 0
    card = build(replace(calibrated, keep_float=("layer.1",)))
    assert card.calibration.reused
    assert card.calibration.images == 8


@pytest.mark.parametrize("change", ["model", "preprocess", "method", "one", "order", "cache"])
def test_ranges_are_measured_again_when_anything_differs(calibrated, tmp_path, change):
    plan = calibrated
    folder = tmp_path / "p"
    shutil.copytree(plan.calibration, folder)
    match change:
        case "model":
            plan = replace(plan, source=tiny_network(tmp_path / "m.onnx", seed=1))
        case "preprocess":
            plan = replace(plan, preprocess={"channels": "BGR"})
        case "method":
            plan = replace(plan, calibrator="minmax")
        case "one":
            image(folder / "5.png", draw(60, 60, 99))
            plan = replace(plan, calibration=folder)
        case "order":
            (folder / "0.png").rename(folder / "9.png")
            plan = replace(plan, calibration=folder)
        case "cache":
            shutil.copytree(plan.repository, tmp_path / "r")
            plan = replace(plan, repository=tmp_path / "r")
            for file in plan.repository.rglob(RANGES_FILE):
                ranges = json.loads(file.read_text())
                del ranges["tensors"]["r.2"]
                file.write_text(json.dumps(ranges))
    assert images_shown(plan) == 8


OTHERS = {
    "another model": lambda folder: {"source": tiny_network(folder / "m.onnx", seed=1)},
    "another preprocessing": lambda _: {"preprocess": {"scale": 1.0}},
    "percentile instead of entropy": lambda _: {"calibrator": "entropy"},
}
SPOILT = {
    "is not a calibration file": lambda text: text[: len(text) // 2],
    "has no range for 'r.2'": lambda text: text.replace('"r.2"', '"other"'),
    "count: ": lambda text: text.replace('"count": 8', '"count": "8"'),
    "'images' is invalid [(]nan": lambda text: text.replace("0.0", "NaN", 1),
    "'images' is invalid [(]inf": lambda text: text.replace("0.0", "1e999", 1),
    "'images' is invalid [(]0.5": lambda text: text.replace("0.0", "0.5", 1),
}


def test_a_file_of_ranges_is_refused_where_it_is_of_something_else_or_broken(calibrated, tmp_path):
    file = calibrated.repository / "net" / "1" / RANGES_FILE
    plan = replace(calibrated, calibration=file, images=calibrated.calibration)
    assert images_shown(plan) == 0
    for says, change in OTHERS.items():
        with pytest.raises(InvalidOption, match=says):
            images_shown(replace(plan, **change(tmp_path)))
    for says, spoil in SPOILT.items():
        (tmp_path / RANGES_FILE).write_text(spoil(file.read_text()))
        with pytest.raises(InvalidOption, match=says):
            images_shown(replace(plan, calibration=tmp_path / RANGES_FILE))
    for calibration, says in (None, "--calibration DIR"), (tmp_path / "absent", "absent"):
        with pytest.raises(InvalidOption, match=says):
            images_shown(replace(plan, calibration=calibration))
    with pytest.raises(NotFound):
        Ranges.read(tmp_path / "absent.json")


def changed(folder: Path, target: Path, change: Callable[[np.ndarray], np.ndarray]) -> Path:
    """The images of a folder, each changed, as PNG files of another."""
    target.mkdir()
    for file in folder.iterdir():
        pixels = cv2.imread(str(file)).astype(np.float32)
        saved = change(pixels).clip(0, 255).astype(np.uint8)
        assert cv2.imwrite(str(target / f"{file.stem}.png"), saved)
    return target


@pytest.fixture(scope="module")
def served(deep_detector, images, tmp_path_factory) -> BuildPlan:
    """The plan of an INT8 engine that lies in its repository, where no other build goes well."""
    repository = tmp_path_factory.mktemp("sabotage") / "r"
    plan = BuildPlan(
        deep_detector, "d", repository, precision="int8", calibration=images, images=images,
        keep_float=(),
    )  # fmt: skip
    build(plan)
    return plan


def detections(plan: BuildPlan) -> np.ndarray:
    with Engine.open(plan.repository / plan.name / "1") as engine:
        return engine.detect(read_image(plan.images / "0.png")).boxes


BLACK = np.zeros_like
IMAGENET = PRESETS["imagenet"]


SPOILT_IMAGES = {
    "black": (BLACK, "8 of 8 calibration images"),
    "saved normalised": (
        lambda x: (x / 255 - IMAGENET["mean"]) / IMAGENET["std"],
        "8 of 8 calibration images",
    ),
    "dark": (lambda x: x / 30, "too dark"),
}


@pytest.mark.real
@pytest.mark.parametrize("kind", SPOILT_IMAGES)
def test_spoilt_images_are_refused(served, tmp_path, kind):
    change, says = SPOILT_IMAGES[kind]
    before = detections(served)
    spoilt = changed(served.calibration, tmp_path / "spoilt", change)
    # With and without images to compare with.
    for images in (served.images, None):
        with pytest.raises((BuildError, InvalidOption), match=says):
            build(replace(served, calibration=spoilt, images=images))
    assert ModelRepository(served.repository).versions("d") == (1,)
    assert (detections(served) == before).all()
    assert not list(served.repository.glob(".*staging*"))


@pytest.mark.real
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
    with pytest.raises(InvalidOption):
        build(replace(plan, calibration=tmp_path / "wrong.json"))
    # As if its origin had been altered as well: what the input reaches tells.
    right = prepared.preprocess.digest
    forged = replace(ranges, origin=replace(ranges.origin, preprocess=right))
    (tmp_path / "forged.json").write_bytes(forged.encode())
    with pytest.raises(Disagreement, match="255"):
        build(replace(plan, calibration=tmp_path / "forged.json"))
    # And with the whole build told wrongly, the source is blind.
    with pytest.raises(UnsupportedModel, match="--preprocess"):
        build(replace(plan, preprocess=wrong))
    assert ModelRepository(tmp_path / "r").versions("yolox") == (1,)
    with Engine.open(tmp_path / "r" / "yolox" / "1") as engine:
        assert len(engine.detect(read_image(shared / "data" / "bus.jpg"))) >= 3


def various(seed):
    return draw(SIZE, SIZE, seed)


def copied(seed):
    """One image, a little brighter every other time."""
    return np.minimum(draw(SIZE, SIZE, 0), 254) + np.uint8(seed % 2)


def small(seed):
    return cv2.resize(draw(SIZE, SIZE, seed), (16, 12), interpolation=cv2.INTER_AREA)


def page(seed):
    pixels, random = np.full((280, 210, 3), 255, np.uint8), np.random.default_rng(seed)
    for line in range(random.integers(20, 80), 270, 20):
        text = "".join(map(chr, random.integers(97, 123, 22)))
        cv2.putText(pixels, text, (10, line), cv2.FONT_HERSHEY_SIMPLEX, 0.4, (0, 0, 0))
    return pixels


COPIES = "only 1 of 16 images are different, and the others are near-duplicates: give more scenes"
SMALL = "16 of 16 images are enlarged more than 4 times to 128x128 (one has 16x12 pixels): give"
PAGES = "16 of 16 images are mostly of one colour, like pages of text"
FEW = "only 16 images to calibrate on"


@pytest.mark.real
@pytest.mark.parametrize(
    ("make", "says"),
    [(various, []), (copied, [COPIES]), (small, [SMALL]), (page, [PAGES])],
)
def test_what_images_lack_is_noted_by_build_and_card(tmp_path, fovea, make, says):
    folder = tmp_path / "images"
    folder.mkdir()
    for seed in range(16):
        cv2.imwrite(str(folder / f"{seed}.png"), make(seed))
    source = tiny_network(tmp_path / "m.onnx", size=2 * SIZE)
    plan = BuildPlan(
        source, "m", tmp_path / "r", precision="int8", calibration=folder, keep_float=()
    )
    notes = Noting()
    card = build(plan, notes)
    said = [note for note in notes.notes if note.startswith("calibration: ")]
    assert len(said) == len(card.calibration.remarks) == 1 + len(says)
    for note, remark, text in zip(said, card.calibration.remarks, [FEW, *says], strict=True):
        assert remark.startswith(text)
        assert note == f"calibration: {remark}"
    status, out, _ = fovea("inspect", "--json", tmp_path / "r" / "m" / "1")
    assert status == 0
    [entry] = json.loads(out)
    assert entry["card"]["calibration"]["remarks"] == list(card.calibration.remarks)
    assert all(text[:30] in (tmp_path / "r" / "m" / "1" / "card.md").read_text() for text in says)
    # Of ranges that are used again, too.
    again = Noting()
    build(BuildPlan(source, "m", tmp_path / "r", precision="int8", calibration=folder), again)
    assert [note for note in again.notes if note.startswith("calibration: ")] == said


@pytest.mark.real
def test_real_photographs_lack_nothing(shared):
    """Sixty-four of COCO, which are not many, and larger than the input or nearly so."""
    images = Images.of(shared / "data" / "coco64" / "calibration", PreprocessSpec(640, 640))
    variety = Variety(images.spec)
    for _ in images.rows(variety):
        pass
    variety.check()
    assert variety.remarks() == ()


def test_images_of_one_scene_that_moves_are_not_copies():
    """Half of the set may be the same."""
    variety = Variety(PreprocessSpec(SIZE, SIZE))
    for seed in range(64):
        variety.add(various(seed // 2))
    assert variety.remarks() == ()
    variety.add(various(0))
    assert [remark.split(" are different")[0] for remark in variety.remarks()] == [
        "only 32 of 65 images"
    ]
