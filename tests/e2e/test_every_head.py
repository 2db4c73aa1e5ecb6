"""Every collected detector, over HTTP on both CPU backends, gives the rows of its own family."""

import json

import httpx
import pytest
from tests.conftest import SHARED
from tests.engines.detect.heads.expected import unmatched
from tests.serving import start_server

from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan
from fovea_engines.detect.heads.preprocess import PRESETS
from fovea_engines.detect.options import PredictOptions
from fovea_engines.engine import Engine
from fovea_engines.evaluate.samples import read_image

HEADS = SHARED / "models" / "heads"
MMDET = {"channels": "BGR", "scale": 1.0, "anchor": "center"}
MMDET |= {"mean": (103.53, 116.28, 123.675), "std": (57.375, 57.12, 58.395)}
# What a user settles where the family leaves it open, and the build says so.
GIVEN = {
    "mmdeploy": {"preprocess": MMDET},
    "paddle": {"preprocess": PRESETS["stretch"]},
    "rtdetr-clothes": {"preprocess": {"resample": "linear"}},
    "yolo5face-500m": {"size": (320, 320), "preprocess": {"anchor": "top-left", "pad": 0}},
}
# How the families' own programs suppress; Fovea's default is an IoU of .7 within a class.
SUPPRESSION = {
    "centerface": {"iou": 0.3},
    "ultraface-rfb-320": {"iou": 0.3},
    "nanodet-m-416": {"iou": 0.6, "agnostic": True},
    "scrfd-500m": {"iou": 0.45},
    "retinaface-mnet025": {"iou": 0.45},
    "yunet-n-dynamic": {"iou": 0.45},
    "yolo5face-500m": {"iou": 0.45},
    "yolov6-clothes": {"iou": 0.45},
    "yolox-nano-decoded": {"iou": 0.45},
}
# Their programs do other things than the networks: LibreYOLO's gives a box several classes,
# RF-DETR's resizes float images, NanoDet's rounds sizes down, torchvision's takes any size.
OTHERWISE = {
    "nanodet-m-416",
    "libreyolo-yolo9t",
    "picodet",
    "ppyoloe",
    "rtmdet",
    "yolonas",
    "rfdetr",
}
OTHERWISE |= {"tv-fasterrcnn", "tv-fcos"}
OTHER_TASKS = {"classify", "semantic", "segment", "pose", "obb", "depth", "saliency", "text"}


def _expected(name):
    return json.loads((HEADS / f"{name}.expected.json").read_text())


FILES = sorted(path.stem for path in HEADS.glob("*.onnx"))
DETECTORS = [name for name in FILES if _expected(name)["task"] not in OTHER_TASKS]


@pytest.fixture(scope="module", params=["openvino", "onnxruntime"])
def served(request, shared, tmp_path_factory):
    """A server with all of them, and its repository."""
    folder = tmp_path_factory.mktemp(request.param)
    image = tmp_path_factory.mktemp("image")
    (image / "bus.jpg").symlink_to(shared / "data" / "bus.jpg")
    for name in DETECTORS:
        given = GIVEN.get(name, {})
        plan = BuildPlan(HEADS / f"{name}.onnx", name, folder, request.param, images=image, **given)
        build(plan)
    server = start_server(folder, tmp_path_factory.mktemp("log"))
    yield server, folder
    assert server.stop() == 0


@pytest.mark.skipif(not FILES, reason=f"the collected models are absent: {HEADS} is not there")
@pytest.mark.parametrize("name", DETECTORS)
def test_rows_are_those_of_the_family(served, shared, name):
    server, repository = served
    options = {"conf": 0.24, **SUPPRESSION.get(name, {})}
    for image, stored in _expected(name)["images"].items():
        path = shared / "data" / ("" if image == "bus.jpg" else "coco64/val") / image
        answer = httpx.post(
            server.predict_url(name), content=path.read_bytes(), params=options, timeout=60
        ).json()
        assert answer["task"] == "detect", answer
        [found] = answer["images"]
        columns = (
            [[d["box"][side] for side in ("x1", "y1", "x2", "y2")] for d in found["detections"]],
            [d["score"] for d in found["detections"]],
            [d["class_id"] for d in found["detections"]],
        )
        # A random YOLO26 gives a box of negative height, which its program keeps.
        rows = [row for row in stored if row["box"][1] < row["box"][3]]
        if name in OTHERWISE:
            # The build has compared these with the file as it is, run by plain ONNX Runtime.
            rows = in_process(repository / name / "1", path, options)
        rows = [row for row in rows if row["score"] > 0.26]
        shape = (found["height"], found["width"])
        more = unmatched(columns, rows, shape, iou=0.96, score=2e-2)
        surer = [row for row in more if row[1] > 0.27]
        assert not surer, f"{image}: more was found: {surer}"


def in_process(folder, image, options):
    """The rows of an engine without a server."""
    with Engine.open(folder) as engine:
        found = engine.detect(read_image(image), PredictOptions(**options))
    columns = zip(
        found.boxes.tolist(), found.scores.tolist(), found.class_ids.tolist(), strict=True
    )
    return [{"box": box, "score": score, "class_id": id_} for box, score, id_ in columns]
