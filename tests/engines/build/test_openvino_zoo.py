"""Networks of OpenVINO's model zoo take BGR, 0 to 255: a real one says the right colours."""

import cv2
import numpy as np
import onnx
import pytest
from tests.engines.tiny import tiny_detector

from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan
from fovea_engines.engine import Engine
from fovea_engines.evaluation.observe import recognise_graph
from fovea_engines.heads.presets import read_preprocess
from fovea_engines.progress import Progress

pytestmark = pytest.mark.real

LABELS = ("car", "van", "truck", "bus")
COLOURS = ("white", "gray", "yellow", "red", "green", "blue", "black")
# Shares of red, green and blue that are left of a white car.
PAINT = {
    "white": (1, 1, 1),
    "red": (1, 0.15, 0.15),
    "blue": (0.15, 0.2, 1),
    "yellow": (1, 0.85, 0.1),
    "green": (0.1, 0.6, 0.2),
}


class Notes(Progress):
    def __init__(self) -> None:
        super().__init__()
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.fixture
def source(shared):
    return shared / "models" / "chains" / "vehicle-attributes-recognition-barrier-0039.onnx"


@pytest.fixture(scope="module")
def white_car(shared):
    video = cv2.VideoCapture(str(shared / "data" / "video" / "car-detection.mp4"))
    for _ in range(331):
        frame = video.read()[1]
    return frame[5:315, 130:315, ::-1]


def plan(source, folder, **options):
    labels = (*LABELS, *COLOURS)
    return BuildPlan(source, "car", folder / "r", "onnxruntime", labels=labels, **options)


def test_colours_of_a_car(source, white_car, tmp_path):
    told = Notes()
    card = build(plan(source, tmp_path), told)
    assert (card.preprocess.fit, card.preprocess.channels) == ("stretch", "BGR")
    assert card.preprocess_from.startswith("a guess: the file was OpenVINO's")
    assert any("model zoo stretches images, in BGR, 0 to 255" in note for note in told.notes)
    with Engine.open(tmp_path / "r" / "car" / "1") as engine:
        for colour, shares in PAINT.items():
            car = np.ascontiguousarray((white_car * np.array(shares)).astype(np.uint8))
            kind, painted = engine.predict(car).found
            assert LABELS[kind.class_ids[0]] == "car"
            best = painted.class_ids[0] - painted.first
            assert (COLOURS[best], painted.probabilities[best] > 0.9) == (colour, True)


def test_what_the_user_says_counts(source, tmp_path):
    given = read_preprocess("imagenet")
    card = build(plan(source, tmp_path, preprocess=given))
    assert (card.preprocess.channels, card.preprocess_from) == ("RGB", "by --preprocess")
    card = build(plan(source, tmp_path, preprocess={"channels": "RGB"}))
    assert (card.preprocess.channels, card.preprocess.scale) == ("RGB", 1.0)


def test_others_are_guessed_as_before(source, tmp_path):
    model = onnx.load(source)
    model.graph.name = "torch-jit-export"
    assert recognise_graph(model)[0].own_preprocess == {}
    # Where the family is known, so is its preprocessing.
    model = onnx.load(tiny_detector(tmp_path / "d.onnx"))
    model.graph.name = "from-openvino"
    head, _ = recognise_graph(model)
    assert (head.family, head.own_preprocess) == ("yolov8", {})
