"""`PredictRoute` takes predict requests and no others; and the JSON of an image."""

from types import SimpleNamespace

import numpy as np
import orjson
import pytest

from fovea_engines.results.detections import Detections
from fovea_engines.results.options import PredictOptions
from fovea_engines.results.vocabulary import Vocabulary
from fovea_server.http.v1.answers import image_json
from fovea_server.http.v1.predict import PredictRoute
from fovea_server.http.v1.schemas import ImageAnswer
from fovea_server.http.v1.sources import ImageSources
from fovea_server.settings import Settings
from fovea_server.tensors.messages import ImageResult

TAKEN = (
    *("/v1/models/m/predict", "/v1/models/m/predict?", "/v1/models/m/predict#fragment"),
    *("/v1/models/a%20b/predict?conf=0.5", "/v1/models/m/versions/12/predict"),
    *("/v1/models/m/predict/form", "/v1/models/m/versions/12/predict/json"),
    "/v1/models/m/annotate",
)
LEFT = (
    *("/v1/models/m", "/v1/models/m/versions/0/predict", "/v1/models/m/versions/x/predict"),
    *("/v1/models/m%2fn/predict", "/v1/models/m/predict/", "/v1/models/m/predict/xml"),
    *("/v1/models/m/annotate/json", "/v1/models/\xff/predict", "/v2/models/m/infer"),
)


def test_predict_requests_are_taken_and_others_are_left_to_fastapi():
    service = SimpleNamespace(settings=Settings(), traffic=None, budget=None)
    route = PredictRoute(service, ImageSources(1 << 20, None))
    assert [target for target in (*TAKEN, *LEFT) if route.takes("POST", target)] == [*TAKEN]
    assert not any(route.takes(method, TAKEN[0]) for method in ("GET", "OPTIONS"))


def result(**found: object) -> ImageResult:
    given = {"found": None, "tensors": None} | found
    return ImageResult(640, 480, 6, pixels=None, **given)


def vocabulary(labels: tuple[str, ...] | None, reason: str = "") -> Vocabulary:
    return Vocabulary(labels, None, reason)


@pytest.mark.parametrize("count", [0, 1, 300])
def test_boxes_are_rounded_as_numpy_rounds_them(count):
    random = np.random.default_rng(count)
    boxes = random.uniform(-10, 5000, (count, 4)).astype(np.float32)
    scores = random.uniform(0, 1, count).astype(np.float32)
    ids = random.integers(0, 4, count).astype(np.int32)
    text = image_json(
        result(found=Detections(boxes, scores, ids)),
        vocabulary(('"a"', "b", "é")),
        PredictOptions(),
    )
    answer = ImageAnswer.model_validate_json(text, strict=True)
    assert (answer.width, answer.height, answer.orientation) == (640, 480, 6)
    got = [list(each.box.model_dump().values()) for each in answer.detections]
    assert got == np.round(boxes.astype(np.float64), 2).tolist()
    told = [each.score for each in answer.detections]
    assert told == np.round(scores.astype(np.float64), 5).tolist()
    assert [each.class_id for each in answer.detections] == ids.tolist()
    names = [each.class_name for each in answer.detections]
    assert names == [('"a"', "b", "é", "3")[each] for each in ids]


def test_numbers_that_json_has_not_are_null():
    boxes = np.array([[np.inf, np.nan, -np.inf, 1]], np.float32)
    found = Detections(boxes, np.array([0.5], np.float32), np.zeros(1, np.int32))
    text = image_json(result(found=found), vocabulary(None), PredictOptions())
    box = orjson.loads(text)["detections"][0]["box"]
    assert box == {"x1": None, "y1": None, "x2": None, "y2": 1.0}


def test_tensors():
    rows = {"out": np.array([[0.1, 2], [3, 4]], np.float32), "half": np.ones(1, np.float16)}
    text = image_json(result(tensors=rows), vocabulary(None, "odd"), PredictOptions())
    answer = ImageAnswer.model_validate_json(text)
    assert answer.reason == "odd"
    assert [each.model_dump() for each in answer.tensors] == [
        {
            "name": "out",
            "datatype": "float32",
            "shape": [2, 2],
            "data": [float(np.float32(0.1)), 2.0, 3.0, 4.0],
        },
        {"name": "half", "datatype": "float16", "shape": [1], "data": [1.0]},
    ]
