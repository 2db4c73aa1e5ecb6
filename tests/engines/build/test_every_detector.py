"""Every collected detector in INT8, with its images and suppression in the graph, and measured."""

import json
import shutil

import pytest
from tests.e2e.test_every_head import CASES, DETECTORS, FILES, HEADS, USUAL

from fovea_accuracy.dataset import read_dataset
from fovea_accuracy.evaluate import evaluate, in_process
from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan
from fovea_engines.build.prepare import prepare
from fovea_engines.detect.heads.registry import FAMILIES
from fovea_engines.detect.options import PredictOptions
from fovea_engines.engine import Engine
from fovea_engines.evaluate.samples import read_image
from fovea_engines.repository.repository import FAILED_FOLDER, REPORT_FILE
from fovea_lab.diff.diff import diff
from fovea_precision import search
from fovea_preprocess.errors import Disagreement, UnsupportedModel

pytestmark = [
    pytest.mark.real,
    pytest.mark.slow,
    pytest.mark.skipif(not FILES, reason=f"the collected models are absent: {HEADS} is not there"),
]
# Of any size; a smaller one makes the tests quick.
SMALLER = {"centerface", "retinaface-mnet025", "scrfd-500m", "yunet-n-dynamic"}
# Their images are resized without rounding, so that decoded images cannot be taken.
IN_FLOATS = {"rfdetr"}
BRANCHES = {"tv-fasterrcnn", "tv-fcos"}
# Their layers are those of another file, so that INT8 and comparing layers show nothing new.
TWINS = {"dfine-bare", "libreyolo-dfine", "rtdetrv2-bare", "yolo26-not-end2end"}
TWINS |= {"mmdeploy", "paddle", "rtdetr-clothes", "tf-od", "ultralytics-rtdetr-clothes"}
TWINS |= {"yolonas-flat", "yolov6-clothes", "yolox-nano-decoded"}


@pytest.fixture(scope="module", autouse=True)
def prepared_once():
    """Normalise and recognise each model once: it is built in two precisions."""
    kept = {}

    def prepared(plan, progress):
        if plan.name not in kept:
            kept[plan.name] = prepare(plan, progress)
        return kept[plan.name]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fovea_engines.build.build.prepare", prepared)
        yield


@pytest.fixture(scope="module")
def bus(shared, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bus")
    shutil.copy(shared / "data" / "bus.jpg", folder)
    return folder


def plan(name, repository, bus, **options):
    given = {} if name in BRANCHES else dict(CASES.get(name, USUAL).given)
    if name in SMALLER:
        given["size"] = (320, 320)
    source = HEADS / f"{name}.onnx"
    return BuildPlan(source, name, repository, "onnxruntime", images=bus, **given, **options)


# Backwards: another process simplifies the same graphs for tests/e2e/test_every_head.py meanwhile,
# so that each makes those of one half.
@pytest.fixture(scope="module", params=DETECTORS[::-1])
def whole(request, tmp_path_factory, bus):
    """An engine that takes decoded images, and suppresses boxes itself where they need it."""
    front = request.param not in IN_FLOATS
    asked = plan(
        request.param, tmp_path_factory.mktemp("whole"), bus, image_front=front, nms_tail=True
    )
    build(asked)
    return asked


def folder_of(asked):
    return asked.repository / asked.name / "1"


def test_images_and_suppression_are_in_the_graph(whole):
    """The build has compared what is found with and without."""
    with Engine.open(folder_of(whole)) as engine:
        card = engine.card
    assert (card.inputs[0].dtype == "uint8") == (whole.name not in IN_FLOATS)
    assert not FAMILIES[card.family].duplicates
    assert card.agreement.quality > 0.99
    assert card.agreement.detections
    report = (folder_of(whole) / REPORT_FILE).read_text()
    # The file of TensorFlow takes decoded images as it is.
    if whole.name not in {"tf-od", *IN_FLOATS}:
        assert card.source_preprocess is not None
        assert "in the graph" in report
    assert "## Agreement" in report


def test_it_finds_what_its_family_finds(whole, bus, tmp_path):
    """Measured as by `fovea eval`, with the family's own answers in place of labels."""
    pixels = read_image(bus / "bus.jpg")
    height, width = pixels.shape[:2]
    stored = json.loads((HEADS / f"{whole.name}.expected.json").read_text())
    lines = []
    for row in stored["images"]["bus.jpg"]:
        sides = zip(row["box"], (width, height) * 2, strict=True)
        x1, y1, x2, y2 = (min(max(side / most, 0), 1) for side, most in sides)
        if x1 < x2 and y1 < y2:
            box = ((x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1)
            lines.append(" ".join(map(str, (row["class_id"], *box))))
    (tmp_path / "bus.txt").write_text("\n".join(lines))
    with Engine.open(folder_of(whole)) as engine:
        dataset = read_dataset(tmp_path, bus).for_model(engine.labels, engine.card.num_classes)
        accuracy = evaluate(in_process(engine), dataset)
        assert len(engine.detect(pixels, PredictOptions(conf=0.2)))
    assert accuracy.images == 1
    # Of another size, or where the program gives a box several classes, it is another answer.
    if whole.name not in SMALLER | BRANCHES and not CASES.get(whole.name, USUAL).several:
        assert accuracy.map50 > 0.6


def test_its_layers_are_those_of_its_source(whole, bus):
    if whole.name in TWINS:
        pytest.skip("another of the list has the same layers")
    found = diff(whole.source, folder_of(whole), images=bus)
    assert found.first is None, found.causes
    assert len(found.layers) > 50


@pytest.mark.parametrize("name", sorted({*DETECTORS} - TWINS))
def test_int8_agrees_or_says_why_not(name, bus, tmp_path, monkeypatch):
    """With a search of two blocks for those that must stay float."""
    monkeypatch.setattr(search, "_MOST", 2)
    monkeypatch.setattr(search, "_FEWEST", 2)
    asked = plan(name, tmp_path, bus, precision="int8", calibration=bus)
    if name in BRANCHES:
        with pytest.raises(UnsupportedModel, match=r"control flow .*--precision fp32"):
            build(asked)
        return
    folder, refused = folder_of(asked), ""
    try:
        card = build(asked)
    except Disagreement as error:
        folder, refused = tmp_path / name / FAILED_FOLDER, str(error)
    except UnsupportedModel as error:
        refused = str(error)
    if "so that nothing is INT8" in refused:
        return
    if refused:
        assert "INT8 agrees 0." in refused
    else:
        assert card.agreement.quality >= 0.8
        assert card.calibration.images == 1
    assert "## Agreement" in (folder / REPORT_FILE).read_text()
