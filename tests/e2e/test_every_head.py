"""Every collected detector, over HTTP, gives the rows of its own family."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from tests.conftest import SHARED
from tests.engines.detect.heads.expected import unmatched, unmatched_best
from tests.serving import start_server

from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan
from fovea_engines.detect.heads.preprocess import PRESETS, VARIANTS
from fovea_engines.evaluate import samples
from fovea_engines.evaluate.agreement.overlap import iou

HEADS = SHARED / "models" / "heads"
MMDET = {"channels": "BGR", "scale": 1.0, "anchor": "center", "unscale": "ratio"}
MMDET |= {"mean": (103.53, 116.28, 123.675), "std": (57.375, 57.12, 58.395)}


@dataclass(frozen=True)
class Case:
    """Differences between how a file's expected rows were made and what Fovea does by default.

    Attributes:
        given: options of the build: what a user settles where the family leaves it open.
        options: of the request: how the family's program suppresses, where not at IoU .7.
        score: largest difference of a score.
        images: only these can be compared.
        several: the program gives a box several classes.
    """

    given: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    score: float = 1e-3
    images: tuple[str, ...] = ()
    several: bool = False


STRICT, STRICTER = {"iou": 0.45}, {"iou": 0.3}
# What a head can have no other way: LibreYOLO gives a box every class over the threshold, where a
# head gives its best, and clips boxes before it suppresses. The rest is exact.
LIBREYOLO = Case(options=STRICT, several=True)
# A network that takes any size resizes by itself. It is served at one size, here that of bus.jpg:
# images of others would be resized twice, and their padding with them.
ANY_SIZE = Case(given={"size": (1080, 810)}, images=("bus.jpg",))
# The build asks, as exporters differ: `--preprocess family`.
FAMILY = {"preprocess": VARIANTS["family"]}
CASES = {
    "centerface": Case(options=STRICTER),
    "dfine": Case(given=FAMILY),
    "dfine-bare": Case(given=FAMILY),
    # Torch's antialias, which transformers uses, rounds otherwise than Pillow's: a grey level in a
    # tenth of the values, which moves the scores of untrained networks this far.
    "hf-detr": Case(given=FAMILY, score=2e-2),
    "hf-rtdetr": Case(given=FAMILY, score=3e-3),
    "libreyolo-yolo9t": LIBREYOLO,
    "mmdeploy": Case(given={"preprocess": MMDET}),
    "nanodet-m-416": Case(
        given={"preprocess": {"rounding": "down"}}, options={"iou": 0.6, "agnostic": True}
    ),
    "paddle": Case(given={"preprocess": PRESETS["stretch"]}),
    "picodet": LIBREYOLO,
    "ppyoloe": LIBREYOLO,
    "retinaface-mnet025": Case(given=FAMILY, options=STRICT),
    "rtdetrv2": Case(given=FAMILY),
    "rtdetrv2-bare": Case(given=FAMILY),
    "rtdetr-clothes": Case(given={"preprocess": {"resample": "linear"}}),
    "rtmdet": LIBREYOLO,
    "scrfd-500m": Case(options=STRICT),
    "tf-od": Case(given=FAMILY),
    "tv-fasterrcnn": ANY_SIZE,
    "tv-fcos": ANY_SIZE,
    "ultraface-rfb-320": Case(options=STRICTER),
    "yolo5face-500m": Case(
        given={"size": (320, 320), "preprocess": {"anchor": "top-left", "pad": 0}}, options=STRICT
    ),
    "yolonas": LIBREYOLO,
    "yolov6-clothes": Case(options=STRICT),
    "yolov6-end2end": Case(given=FAMILY),
    "yolox-nano-decoded": Case(options=STRICT),
    "yunet-n-dynamic": Case(options=STRICT),
}
USUAL = Case()
OTHER_TASKS = {"classify", "semantic", "segment", "pose", "obb", "depth", "saliency", "text"}


def _expected(name):
    return json.loads((HEADS / f"{name}.expected.json").read_text())


# The first test of a backend builds and loads them all.
pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(900)]

FILES = sorted(path.stem for path in HEADS.glob("*.onnx"))
DETECTORS = [name for name in FILES if _expected(name)["task"] not in OTHER_TASKS]
FACES = ("centerface", "retinaface-mnet025", "scrfd-500m", "yolo5face-500m", "yunet-n-dynamic")
# The others are built for ONNX Runtime and measured by tests/engines/build/test_every_detector.py.
# These branch, suppress in the graph, or show a face below.
IN_ONNXRUNTIME = {"mmdeploy", "paddle", "tf-od", "tv-fasterrcnn", "yolov6-end2end", *FACES}


def serve_built(backend, names, shared, tmp_path_factory):
    """A server with these, built for a backend."""
    folder = tmp_path_factory.mktemp(backend)
    image = tmp_path_factory.mktemp("image")
    (image / "bus.jpg").symlink_to(shared / "data" / "bus.jpg")
    for name in names:
        given = CASES.get(name, USUAL).given
        plan = BuildPlan(HEADS / f"{name}.onnx", name, folder, backend, images=image, **given)
        build(plan)
    server = start_server(folder, tmp_path_factory.mktemp("log"), wait=False)
    while httpx.get(f"{server.url}/v2/health/ready").status_code != 200:
        time.sleep(0.2)
    yield server
    assert server.stop() == 0


@pytest.fixture(scope="module")
def in_openvino(shared, tmp_path_factory):
    yield from serve_built("openvino", DETECTORS, shared, tmp_path_factory)


@pytest.fixture(scope="module")
def in_onnxruntime(shared, tmp_path_factory):
    names = sorted(IN_ONNXRUNTIME & {*DETECTORS})
    yield from serve_built("onnxruntime", names, shared, tmp_path_factory)


@pytest.mark.skipif(not FILES, reason=f"the collected models are absent: {HEADS} is not there")
@pytest.mark.parametrize("name", DETECTORS)
def test_rows_are_those_of_the_family(in_openvino, shared, name):
    compare(in_openvino, shared, name)


@pytest.mark.skipif(not FILES, reason=f"the collected models are absent: {HEADS} is not there")
@pytest.mark.parametrize("name", sorted(IN_ONNXRUNTIME & {*DETECTORS}))
def test_rows_are_those_of_the_family_in_onnxruntime(in_onnxruntime, shared, name):
    compare(in_onnxruntime, shared, name)


def compare(served, shared, name):
    case, threshold = CASES.get(name, USUAL), 0.25
    # A row that lies on the threshold may fall either way.
    low, high = threshold - case.score, threshold + case.score
    for image, stored in _expected(name)["images"].items():
        if image not in (case.images or (image,)):
            continue
        path = shared / "data" / ("" if image == "bus.jpg" else "coco64/val") / image
        answer = httpx.post(
            served.predict_url(name),
            content=path.read_bytes(),
            params={"conf": low, **case.options},
            timeout=60,
        ).json()
        assert answer["task"] == "detect", answer
        [found] = answer["images"]
        columns = (
            [[d["box"][side] for side in ("x1", "y1", "x2", "y2")] for d in found["detections"]],
            [d["score"] for d in found["detections"]],
            [d["class_id"] for d in found["detections"]],
        )
        # Untrained networks give boxes of no height, which their programs keep.
        rows = [
            row
            for row in stored
            if row["score"] > high
            and row["box"][0] < row["box"][2]
            and row["box"][1] < row["box"][3]
        ]
        shape = (found["height"], found["width"])
        if case.several:
            left = unmatched_best(columns, rows, shape)
        else:
            left = unmatched(columns, rows, shape, score=case.score)
        more = [row for row in left if row[1] > high]
        assert not more, f"{image}: more was found: {more}"


@pytest.mark.skipif(not FILES, reason=f"the collected models are absent: {HEADS} is not there")
def test_face_detectors_agree_on_a_face(in_onnxruntime):
    """Trained by five groups, on one photograph of an astronaut: what they find is no accident."""
    body = (Path(samples.__file__).parent / "photographs" / "astronaut.jpg").read_bytes()
    boxes = []
    for name in FACES:
        answer = httpx.post(in_onnxruntime.predict_url(name), content=body, timeout=60).json()
        [[found]] = (image["detections"] for image in answer["images"])
        assert (found["class_name"], len(found["keypoints"])) == ("face", 5)
        boxes.append([found["box"][side] for side in ("x1", "y1", "x2", "y2")])
    overlaps = iou(np.float32(boxes), np.float32(boxes))
    assert overlaps.min() >= 0.8, overlaps
