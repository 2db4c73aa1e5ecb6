"""Tiles are those of SAHI's own slicing, and so is what is found on them."""

import importlib
import sys
from pathlib import Path
from typing import ClassVar

import cv2
import numpy as np
import pytest
from tests.built import build

from fovea_engines.build.plan import BuildPlan
from fovea_engines.engine import Engine
from fovea_engines.evaluation.samples import read_image
from fovea_engines.results.options import PredictOptions

pytestmark = pytest.mark.real

SAHI = Path(sys.prefix) / "vision" / "site-packages"


@pytest.fixture(scope="module")
def engine(shared, tmp_path_factory):
    repository = tmp_path_factory.mktemp("sahi") / "models"
    source = shared / "models" / "yolox_nano.onnx"
    build(BuildPlan(source, "yolox_nano", repository, backend="onnxruntime"))
    with Engine.open(repository / "yolox_nano" / "1") as engine:
        yield engine


@pytest.fixture
def sahi(monkeypatch, engine):
    """SAHI's sliced prediction, by a model of SAHI that asks the engine."""
    if not SAHI.exists():
        pytest.skip(f"{SAHI} is absent: `make test-real` installs it")
    monkeypatch.syspath_prepend(str(SAHI))
    predict = importlib.import_module("sahi.predict")
    prediction = importlib.import_module("sahi.prediction").ObjectPrediction

    class Model(importlib.import_module("sahi.models.base").DetectionModel):
        category_remapping = None
        category_mapping: ClassVar = {}
        confidence_threshold = 0.25

        def __init__(self):
            self.found = []

        @property
        def num_categories(self):
            return engine.num_classes

        def perform_inference(self, image):
            self.perform_batch_inference([image])

        def perform_batch_inference(self, images):
            self.found = [engine.detect(np.ascontiguousarray(image)) for image in images]

        def _create_object_prediction_list_from_original_predictions(
            self, shift_amount_list, full_shape_list=None
        ):
            # SAHI passes one pair for one image, and a list of pairs for several.
            shifts = np.atleast_2d(shift_amount_list).tolist()
            size = np.atleast_2d(full_shape_list)[0].tolist() if full_shape_list else None
            self._object_prediction_list_per_image = [
                [
                    prediction(
                        bbox=box.tolist(),
                        category_id=int(class_id),
                        score=float(score),
                        category_name=str(class_id),
                        shift_amount=shift,
                        full_shape=size,
                    )
                    for box, class_id, score in zip(
                        found.boxes, found.class_ids, found.scores, strict=True
                    )
                ]
                for found, shift in zip(self.found, shifts, strict=True)
            ]

    def sliced(image):
        answer = predict.get_sliced_prediction(
            image,
            Model(),
            slice_height=640,
            slice_width=640,
            overlap_height_ratio=0.2,
            overlap_width_ratio=0.2,
            postprocess_type="NMS",
            postprocess_match_metric="IOS",
            postprocess_match_threshold=0.5,
            verbose=0,
        )
        return [
            (each.category.id, each.score.value, each.bbox.to_xyxy())
            for each in answer.object_prediction_list
        ]

    return sliced


def mosaic(shared, first):
    """An image of 1920 x 960 pixels, of six photographs from the first on."""
    paths = sorted((shared / "data" / "coco64" / "val").glob("*.jpg"))
    parts = [cv2.resize(read_image(path), (640, 480)) for path in paths[first : first + 6]]
    return np.vstack([np.hstack(parts[:3]), np.hstack(parts[3:])])


@pytest.mark.parametrize("first", range(0, 48, 6))
def test_what_sahi_finds_whole_is_found(shared, engine, sahi, first):
    """SAHI keeps the surer of two boxes, also where a tile cuts it; here the whole one is kept."""
    image = mosaic(shared, first)
    found = engine.detect(image, PredictOptions(tile="640", overlap=0.2))
    want = [each for each in sahi(image) if not ends_at_an_edge(each[2])]
    assert len(found) >= len(want) > 0
    others = 0
    for class_id, score, box in want:
        near = np.abs(found.boxes - box).max(axis=1) < 1
        same = found.class_ids == class_id
        others += not (near & same & (abs(found.scores - score) < 1e-3)).any()
    # Where SAHI's box won over one that a tile cuts, which had won over a whole one before.
    assert others <= 1


def ends_at_an_edge(box):
    """Return True for a box with a side at an edge of a tile inside the image."""
    across = (512, 640, 1024, 1152, 1280, 1664)
    return any(abs(x - edge) < 5 for x in box[::2] for edge in across) or any(
        abs(y - edge) < 5 for y in box[1::2] for edge in (320, 640)
    )
