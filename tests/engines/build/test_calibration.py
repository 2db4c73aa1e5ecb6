"""From images to ranges: what is measured, what is refused, and when it is measured again."""

import json
import shutil
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
from tests.engines.counting import Counting
from tests.engines.tiny import SIZE, constant, save, tiny_network

from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan
from fovea_engines.build.prepare import prepare
from fovea_engines.evaluation.samples import read_image
from fovea_engines.progress import Progress
from fovea_engines.quantization.calibrate import (
    MAX_IMAGES,
    Images,
    calibrate,
    find_ranges,
)
from fovea_engines.quantization.calibrators import PERCENTILE, Histogram
from fovea_engines.quantization.ranges import RANGES_FILE, Method, Origin, Ranges
from fovea_preprocess.errors import BuildError, InvalidImage, InvalidOption, NotFound
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
        ranges = measured(network, images, method)
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


def test_progress_counts_every_image(network, images):
    progress = Counting()
    measured(network, images, progress=progress)
    assert progress.counts == [(done, 8) for done in range(1, 9)]


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


def test_the_digest_follows_bytes_and_order_not_names(images, tmp_path):
    digests = set()
    for number, order in enumerate((range(8), range(8), reversed(range(8)))):
        folder = tmp_path / str(number)
        folder.mkdir()
        for place, seed in enumerate(order):
            shutil.copy(images / f"{seed}.png", folder / f"copy-{number}-{place}.png")
        digests.add(Images.of(folder, SPEC).digest)
    assert len(digests) == 2
    assert Images.of(images, SPEC).digest in digests


def test_a_damaged_image_is_named(network, images, tmp_path):
    shutil.copytree(images, tmp_path / "p")
    whole = (tmp_path / "p" / "3.png").read_bytes()
    (tmp_path / "p" / "3.png").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InvalidImage, match=r"p/3\.png"):
        measured(network, tmp_path / "p")


@pytest.mark.parametrize("colour", [(0, 0, 0), (255, 255, 255), (0, 0, 255), (30, 140, 200)])
def test_scenes_of_one_colour_are_refused(network, tmp_path, colour):
    for number in range(4):
        flat = np.full((48, 64, 3), colour, np.uint8)
        # As a sensor sees it: noise of a level or so.
        noise = np.random.default_rng(number).integers(-1, 2, flat.shape)
        image(tmp_path / f"{number}.png", np.clip(flat + noise, 0, 255).astype(np.uint8))
    with pytest.raises(InvalidOption, match="4 of 4 calibration images are of one colour"):
        measured(network, tmp_path)
    for number in range(4, 8):
        image(tmp_path / f"{number}.png", draw(48, 64, number))
    assert measured(network, tmp_path).count == 8


def test_a_network_that_overflows_names_the_tensor(network, images, tmp_path):
    model = onnx.load(network)
    [weight] = (w for w in model.graph.initializer if w.name == "w.2")
    weight.CopyFrom(constant("w.2", np.full((8, 8, 3, 3), 3e38, np.float32)))
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(BuildError, match=r"tensor 'r\.2': .*not finite"):
        measured(tmp_path / "m.onnx", images)


def test_what_onnxruntime_cannot_run_is_a_sentence(images, tmp_path):
    shape = ["batch", 3, SIZE, SIZE]
    nodes = [
        onnx.helper.make_node("Reshape", ["images", "shape"], ["wide"]),
        onnx.helper.make_node("Conv", ["wide", "w"], ["out"]),
    ]
    weights = [
        constant("shape", np.array([2, 3, 7, -1])),
        constant("w", np.zeros((1, 3, 1, 1), np.float32)),
    ]
    model = save(
        tmp_path / "m.onnx", nodes, [("images", shape)], [("out", ["b", 1, "h", "w"])], weights
    )
    with pytest.raises(BuildError, match="ONNX Runtime cannot run the model"):
        measured(model, images)


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
    progress = Counting()
    _, reused = find_ranges(plan, prepare(plan, progress), progress)
    assert reused == (not progress.counts)
    return len(progress.counts)


def test_ranges_are_used_again_when_nothing_differs(calibrated):
    assert images_shown(calibrated) == 0
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
            for version in versions(plan):
                ranges = json.loads((version / RANGES_FILE).read_text())
                del ranges["tensors"]["r.2"]
                (version / RANGES_FILE).write_text(json.dumps(ranges))
    assert images_shown(plan) == 8


def versions(plan: BuildPlan) -> list[Path]:
    return [path for path in (plan.repository / plan.name).iterdir() if path.name.isdigit()]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda plan, _: {"source": tiny_network(_ / "m.onnx", seed=1)}, "another model"),
        (lambda plan, _: {"preprocess": {"scale": 1.0}}, "another preprocessing"),
        (lambda plan, _: {"calibrator": "entropy"}, "the method percentile instead of entropy"),
    ],
)
def test_ranges_of_something_else_are_refused_by_name(calibrated, tmp_path, change, says):
    file = calibrated.repository / "net" / "1" / RANGES_FILE
    plan = replace(calibrated, calibration=file, images=calibrated.calibration)
    assert images_shown(plan) == 0
    with pytest.raises(InvalidOption, match=f"calibration.json was measured with {says}"):
        images_shown(replace(plan, **change(plan, tmp_path)))


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda text: text[: len(text) // 2], "holds no calibration"),
        (lambda text: "", "holds no calibration"),
        (lambda text: "[]", "holds no calibration"),
        (lambda text: text.replace('"r.2"', '"other"'), "has no range of 'r.2'"),
        (lambda text: text.replace('"count": 8', '"count": "8"'), "count: "),
        (lambda text: text.replace("0.0", "NaN", 1), "the range of 'images' is nan"),
        (lambda text: text.replace("0.0", "1e999", 1), "the range of 'images' is inf"),
        (lambda text: text.replace("0.0", "0.5", 1), "the range of 'images' is 0.5"),
    ],
)
def test_a_calibration_that_was_tampered_with_is_refused(calibrated, tmp_path, spoil, says):
    text = (calibrated.repository / "net" / "1" / RANGES_FILE).read_text()
    (tmp_path / RANGES_FILE).write_text(spoil(text))
    assert spoil(text) != text
    plan = replace(calibrated, calibration=tmp_path / RANGES_FILE, images=calibrated.calibration)
    with pytest.raises(InvalidOption, match=says):
        images_shown(plan)


def test_int8_without_images_says_what_it_needs(calibrated, tmp_path):
    with pytest.raises(InvalidOption, match="--calibration DIR: a hundred images"):
        images_shown(replace(calibrated, calibration=None))
    with pytest.raises(InvalidOption, match="not a folder of images"):
        images_shown(replace(calibrated, calibration=tmp_path / "absent"))
    with pytest.raises(NotFound):
        Ranges.read(tmp_path / "absent.json")
