"""Real detectors over HTTP agree with an independent plain-numpy reference."""

import json
from pathlib import Path

import httpx
import numpy as np
import pytest

STORED = Path(__file__).resolve().parents[1] / "engines" / "reference_boxes.json"
# What `shared/models/README.md` says is in bus.jpg.
BUS = {
    "yolov8n": {"person": [0.905, 0.905, 0.897, 0.429], "bus": [0.875]},
    "yolov5n": {"person": [0.814, 0.791, 0.607], "bus": [0.507]},
    "yolov10n": {"person": [0.913, 0.909, 0.848, 0.442], "bus": [0.950]},
    "yolox_nano": {"person": [0.855, 0.806, 0.687], "bus": [0.909]},
}


def overlap(a, b) -> float:
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    if width <= 0 or height <= 0:
        return 0.0
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (a, b)]
    return width * height / (sum(areas) - width * height)


def corners(detection) -> list[float]:
    return [detection["box"][key] for key in ("x1", "y1", "x2", "y2")]


@pytest.mark.parametrize("model", BUS)
def test_people_and_bus(detector_server, shared, model):
    data = (shared / "data" / "bus.jpg").read_bytes()
    answer = httpx.post(detector_server.predict_url(model), content=data, timeout=60).json()
    image = answer["images"][0]
    assert (image["width"], image["height"], image["orientation"]) == (810, 1080, 1)
    assert (answer["model"], answer["version"], answer["task"]) == (model, "1", "detect")
    for name, scores in BUS[model].items():
        found = [d["score"] for d in image["detections"] if d["class_name"] == name]
        assert np.allclose(found[: len(scores)], scores, atol=0.02), (name, found)


@pytest.mark.parametrize("model", BUS)
def test_boxes_of_the_stored_reference(detector_server, shared, model):
    stored = json.loads(STORED.read_text())[model]
    for name, expected in stored.items():
        path = shared / "data" / name
        answer = httpx.post(
            detector_server.predict_url(model), content=path.read_bytes(), timeout=60
        ).json()
        found = answer["images"][0]["detections"]
        for reference in expected:
            twins = [
                d
                for d in found
                if d["class_id"] == reference["class_id"]
                and overlap(corners(d), reference["box"]) > 0.9
                and abs(d["score"] - reference["score"]) < 0.02
            ]
            # A box at the threshold itself may fall on either side of it.
            assert twins or reference["score"] < 0.27, (name, reference)


def test_map_through_the_server_is_that_in_process(detector_server, detector_repository, shared):
    from fovea_engines.engine import Engine
    from fovea_engines.options import PredictOptions
    from fovea_engines.repository import ModelRepository
    from fovea_preprocess.image import decode_image

    truth = shared / "data" / "coco64" / "val.json"
    images = json.loads(truth.read_text())["images"]
    folder = truth.parent / "val"
    # Fewer boxes than COCO's 0.001 would ask for, so that four models fit a test.
    options = PredictOptions(conf=0.01)
    with httpx.Client(timeout=60) as client:
        for model in BUS:
            remote, local = [], []
            with Engine.open(ModelRepository(detector_repository).folder(model)) as engine:
                for image in images:
                    data = (folder / image["file_name"]).read_bytes()
                    answer = client.post(
                        detector_server.predict_url(model), params={"conf": 0.01}, content=data
                    ).json()
                    remote += [
                        coco(image["id"], corners(d), d["score"], d["class_id"])
                        for d in answer["images"][0]["detections"]
                    ]
                    found = engine.detect(decode_image(data).pixels, options)
                    local += [
                        coco(image["id"], *rest)
                        for rest in zip(
                            found.boxes.tolist(),
                            found.scores.tolist(),
                            found.class_ids.tolist(),
                            strict=True,
                        )
                    ]
            figures = mean_ap(truth, remote), mean_ap(truth, local)
            assert figures[0] == pytest.approx(figures[1], abs=0.001), model
            assert figures[1] > 0.28, (model, figures)


def coco(image_id, box, score, class_id):
    x1, y1, x2, y2 = box
    return {
        "image_id": image_id,
        "category_id": class_id,
        "bbox": [x1, y1, x2 - x1, y2 - y1],
        "score": score,
    }


def mean_ap(truth: Path, detections) -> float:
    """mAP50-95 by pycocotools."""
    import contextlib
    import io

    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    with contextlib.redirect_stdout(io.StringIO()):
        coco_truth = COCO(str(truth))
        evaluation = COCOeval(coco_truth, coco_truth.loadRes(detections), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return float(evaluation.stats[0])
