"""A real answer of every task: the schemas and the client have all of its fields, and no others."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_args

import cv2
import httpx
import numpy as np
import pytest
from onnx import helper
from pydantic import ValidationError
from tests.built import build
from tests.conftest import DEMO, ROOT
from tests.e2e.results import AS_IT_IS, IMAGES, KINDS, SIDE
from tests.engines.tiny import save
from tests.serving import start_server

from fovea_client import TASKS, Client, as_json
from fovea_engines.build.plan import BuildPlan
from fovea_engines.results.registry import RESULT_OF
from fovea_server.http.v1.schemas import PredictAnswer

pytestmark = pytest.mark.slow

PAGE = ROOT / "server/fovea_server/ui/tasks.js"
# The files as they are, whose heads are recognised.
PLAIN = {
    "detect": "digits.onnx",
    "segment": "digits-segment.onnx",
    "pose": "digits-pose.onnx",
    "obb": "digits-obb.onnx",
    "classify": "digits-classify.onnx",
}
# Of these a map of one channel may be: each is told which.
GREY = {"saliency": "u2net", "depth": "depth", "text": "ppocr-det"}
FORMS: dict[str, list[dict[str, Any]]] = {
    "segment": [{"mask": each} for each in ("rle", "polygon", "png", "none")],
    "semantic": [{"mask": each} for each in ("rle", "polygon", "png", "none")],
    "saliency": [{}, {"mask": "none"}],
    "depth": [{}, {"mask": "none"}],
    "image": [{}, {"mask": "none"}],
    "embed": [{}, {"vector": "list", "normalise": False}],
    "detect": [{}, {"track": "bytetrack", "stream_id": "one", "frame": 1}],
}


def network(op: str, *inputs: str, channels: int, **attributes: object) -> Callable[[Path], Path]:
    """Writes a network of one operation on the images."""
    nodes = [helper.make_node(op, inputs, ["out"], **attributes)]
    return lambda path: save(path, nodes, IMAGES, [("out", ["batch", channels, SIDE, SIDE])], [])


# The scores of three classes are the colours of each pixel.
colours = network("Identity", "images", channels=3)
grey = network("ReduceMean", "images", channels=1, axes=[1])
# No head decodes it.
doubled = network("Add", "images", "images", channels=3)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("every")
    for task, file in PLAIN.items():
        (folder / "r" / task / "1").mkdir(parents=True)
        (folder / "r" / task / "1" / "model.onnx").symlink_to(DEMO / file)
    made: dict[str, tuple[Any, Mapping[str, Any]]] = {
        **{kind.task: (kind.write, kind.given) for kind in KINDS.values()},
        "semantic": (colours, {"family": "semantic", "labels": ("red", "green", "blue")}),
        "tensors": (doubled, {}),
        **{task: (grey, {"family": family}) for task, family in GREY.items()},
    }
    for task, (write, given) in made.items():
        plan = {"preprocess": AS_IT_IS, **given}
        source = write(folder / f"{task}.onnx")
        build(BuildPlan(source, task, folder / "r", "onnxruntime", **plan))
    running = start_server(folder / "r", tmp_path_factory.mktemp("log"))
    yield running
    assert running.stop() == 0


@pytest.fixture(scope="module")
def images() -> dict[str, bytes]:
    """A scene of digits, and for tiny networks a bright bar on a dark ground."""
    pixels = np.full((64, 96, 3), 20, np.uint8)
    pixels[20:40, 16:80] = (90, 230, 250)
    bar = cv2.imencode(".png", pixels)[1].tobytes()
    return {"": bar} | {
        task: (DEMO / file).read_bytes()
        for task, file in {
            **dict.fromkeys(("detect", "segment", "pose", "obb"), "scene-1.jpg"),
            "classify": "digit.jpg",
        }.items()
    }


def test_all_sides_have_the_same_tasks():
    named = get_args(PredictAnswer.model_fields["task"].annotation)
    fields = {task: kind.field for task, kind in RESULT_OF.items()} | {"tensors": "tensors"}
    assert named == (*RESULT_OF, "tensors")
    assert fields == TASKS
    rows, kinds = PAGE.read_text().split("export const KINDS")
    of_page = dict(re.findall(r'^  (\w+): \{ label: ".*", kind: "(\w+)".*\},$', rows, re.M))
    assert {**of_page, "tensors": "tensors"} == TASKS
    assert set(re.findall(r"^  (\w+): \{$", kinds, re.M)) == set(of_page.values())


@pytest.mark.parametrize("task", TASKS)
def test_an_answer_is_what_both_say(server, images, task):
    image = images.get(task, images[""])
    for options in FORMS.get(task, [{}]):
        answer = httpx.post(server.predict_url(task), content=image, params=options).json()
        read = PredictAnswer.model_validate(answer, strict=True)
        assert read.task == task
        assert read.model_dump(exclude_unset=True) == answer, "the schema has all of its fields"
        [found] = answer["images"]
        assert found[TASKS[task]], "something is found"
        with Client(server.url) as client:
            result = client.predict(task, image, **client_options(options)).image
        if "track" not in options:
            assert as_json(result) == without_reason(found), "the client has all of its fields"


def client_options(options: dict[str, Any]) -> dict[str, Any]:
    """A frame comes once."""
    return options | {"frame": options["frame"] + 1} if "frame" in options else options


def without_reason(found: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in found.items() if name != "reason"}


@pytest.mark.parametrize(
    "change",
    [
        {"orientation": None},
        {"detections": None},
        {"error": None},
        {"later": 1},
        {"detections": [{"keypoints": None}]},
        {"detections": [{"later": 1}]},
    ],
)
def test_the_schemas_take_neither_null_nor_other_fields(server, images, change):
    answer = httpx.post(server.predict_url("detect"), content=images["detect"]).json()
    PredictAnswer.model_validate(answer, strict=True)
    [image] = answer["images"]
    found = image["detections"][0]
    rows = change.get("detections")
    image |= change if not rows else {"detections": [found | rows[0]]}
    with pytest.raises(ValidationError):
        PredictAnswer.model_validate(answer, strict=True)
