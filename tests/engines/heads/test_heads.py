"""Every head on real model outputs, against the independent reference."""

import json

import cv2
import numpy as np
import onnxruntime
import pytest
from tests.engines import reference

from fovea_engines.heads.presets import default_preprocess
from fovea_engines.heads.registry import FAMILIES
from fovea_engines.results.options import PredictOptions
from fovea_engines.session import TensorSpec

pytestmark = pytest.mark.real

STORED = json.loads(reference.STORED.read_text())
OUTPUT = "out"


class Case:
    """A real model's raw outputs on the stored images, and how they map back."""

    def __init__(self, shared, model):
        self.model, self.family = model, reference.MODELS[model]
        session = onnxruntime.InferenceSession(
            shared / "models" / f"{model}.onnx", providers=["CPUExecutionProvider"]
        )
        taken = session.get_inputs()[0]
        self.size = tuple(taken.shape[2:])
        self.head = FAMILIES[self.family].open((OUTPUT,), self.size)
        rows, self.maps = [], []
        for name in reference.IMAGES:
            image = cv2.imread(str(shared / "data" / name))
            tensor, *where = reference.letterbox(image, *self.size, self.family)
            rows.append(session.run(None, {taken.name: tensor})[0])
            self.maps.append((*where, image.shape))
        self.raw = np.concatenate(rows)
        self.raw.flags.writeable = False

    def decode(self, row, raw=None, **options):
        raw = self.raw if raw is None else raw
        return self.head.decode({OUTPUT: raw}, row, PredictOptions(**options))

    def original(self, row, found):
        """Detections as the reference stores them: boxes in pixels of the image."""
        scale, left, top, (height, width, _) = self.maps[row]
        boxes = (found.boxes - [left, top, left, top]) / scale
        boxes = np.clip(boxes, 0, [width, height, width, height])
        columns = (boxes.tolist(), found.scores.tolist(), found.class_ids.tolist())
        return list(zip(*columns, strict=True))


@pytest.fixture(scope="session", params=list(reference.MODELS))
def case(request, shared):
    return Case(shared, request.param)


def assert_same(found, expected, score=0.02, iou=0.9):
    assert len(found) == len(expected)
    left = list(found)
    for want in expected:
        best = max(
            left, key=lambda f: (f[2] == want["class_id"], reference.overlap(f[0], want["box"]))
        )
        assert best[2] == want["class_id"]
        assert best[1] == pytest.approx(want["score"], abs=score)
        assert reference.overlap(best[0], want["box"]) > iou
        left.remove(best)


@pytest.mark.parametrize("row", range(len(reference.IMAGES)), ids=reference.IMAGES)
def test_boxes_are_the_stored_ones(case, row):
    found = case.original(row, case.decode(row))
    assert_same(found, STORED[case.model][reference.IMAGES[row]])


def test_the_bus_and_its_people_are_found(case):
    found = case.decode(0)
    published = {
        "yolov8n": ([0.905, 0.905, 0.897, 0.429], 0.875),
        "yolov5n": ([0.814, 0.791, 0.607], 0.507),
        "yolov10n": ([0.913, 0.909, 0.848, 0.442], 0.950),
        "yolox_nano": ([0.855, 0.806, 0.687], 0.909),
    }
    people, bus = published[case.model]
    assert found.scores[found.class_ids == 0][: len(people)] == pytest.approx(people, abs=0.02)
    assert found.scores[found.class_ids == 5] == pytest.approx([bus], abs=0.02)


def test_low_scores_agree_with_the_reference_too(case):
    if case.family == "yolov10":
        pytest.skip("nothing is suppressed, so nothing is added by more candidates")
    candidates = reference.decode(case.raw[0], case.family, *case.size, 0.01)
    kept = reference.suppress(candidates, 0.5)
    found = case.decode(0, conf=0.01, iou=0.5, max_det=3000)
    expected = np.array([candidates[i] for i in kept])
    assert found.boxes == pytest.approx(expected[:, :4], abs=0.01)
    assert found.scores == pytest.approx(expected[:, 4], abs=1e-5)
    assert found.class_ids.tolist() == expected[:, 5].tolist()


def test_best_come_first_and_conf_and_max_det_hold(case):
    everything = case.decode(1, conf=0.05)
    assert (np.diff(everything.scores) <= 0).all()
    surer = case.decode(1, conf=0.5)
    assert surer.scores.tolist() == [s for s in everything.scores.tolist() if s >= 0.5]
    three = case.decode(1, conf=0.05, max_det=3)
    assert three.boxes.tolist() == everything.boxes[:3].tolist()


def test_a_class_filter_keeps_those_classes_and_changes_nothing_else(case):
    everything = case.decode(0)
    buses = case.decode(0, classes=(5,))
    assert buses.class_ids.tolist() == [5]
    assert buses.boxes.tolist() == everything.boxes[everything.class_ids == 5].tolist()
    assert len(case.decode(0, classes=())) == 0


def test_agnostic_suppression_crosses_classes(case):
    found = case.decode(0, conf=0.001, iou=0.3, agnostic=True)
    if case.family == "yolov10":
        assert found.scores.tolist() == case.decode(0, conf=0.001).scores.tolist()
        return
    boxes = found.boxes.tolist()
    pairs = [(a, b) for i, a in enumerate(boxes[:40]) for b in boxes[:i]]
    assert max(reference.overlap(a, b) for a, b in pairs) <= 0.3 + 1e-6
    aware = case.decode(0, conf=0.001, iou=0.3)
    assert len(aware) >= len(found)


def test_rows_of_a_batch_are_independent(case):
    alone = case.head.decode({OUTPUT: case.raw[2:3]}, 0, PredictOptions())
    within = case.decode(2)
    assert within.boxes.tolist() == alone.boxes.tolist()
    assert within.scores.tolist() == alone.scores.tolist()


def test_half_precision_outputs_are_read(case):
    half = case.raw.astype(np.float16)
    assert_same(case.original(0, case.decode(0, half)), STORED[case.model]["bus.jpg"])


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_broken_numbers_give_no_boxes(case, bad, dtype):
    broken = case.raw[:1].astype(dtype)
    broken[:] = bad
    assert len(case.decode(0, broken, conf=0.0)) == 0
    # A sprinkle of them spares the rest.
    sprinkled = case.raw[:1].astype(dtype)
    rng = np.random.default_rng(7)
    sprinkled[rng.random(sprinkled.shape) < 0.001] = bad
    found = case.decode(0, sprinkled, conf=0.001)
    assert len(found) > 0
    assert np.isfinite(found.boxes).all()
    assert (found.scores <= 1).all()


def test_results_do_not_keep_the_output_alive(case):
    found = case.decode(0)
    for array in (found.boxes, found.scores, found.class_ids):
        while array is not None:
            assert array.nbytes < 100_000
            array = array.base


def test_yolox_decodes_rectangles_and_a_fourth_level():
    size = (128, 192)
    counts = [(128 // s) * (192 // s) for s in (8, 16, 32, 64)]
    raw = np.zeros((1, sum(counts), 5 + 2), dtype=np.float32)
    # The last cell of each level: its centre by hand, one stride wide.
    for index in np.cumsum(counts) - 1:
        raw[0, index, 4:] = [1.0, 0.1, 0.9]
    head = FAMILIES["yolox"].open((OUTPUT,), size)
    found = head.decode({OUTPUT: raw}, 0, PredictOptions())
    corners = [
        [192 - s - s / 2, 128 - s - s / 2, 192 - s / 2, 128 - s / 2] for s in (8, 16, 32, 64)
    ]
    assert found.boxes.tolist() == corners
    assert found.class_ids.tolist() == [1] * 4


def test_preprocessing_is_what_the_reference_does(case):
    spec = default_preprocess(
        case.family, [TensorSpec("images", "float32", (-1, 3, *case.size))], {}
    )
    assert (spec.height, spec.width) == case.size
    raw_grid = case.family == "yolox"
    assert spec.channels == ("BGR" if raw_grid else "RGB")
    assert spec.scale == (1.0 if raw_grid else 1 / 255)
    assert spec.anchor == ("top-left" if raw_grid else "center")
    assert spec.pad == 114
