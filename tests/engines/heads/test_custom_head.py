"""A head of a user's own, in a file: what its class may be, and what its results must be."""

from pathlib import Path

import numpy as np
import pytest
from tests.odd import HEAD

from fovea_engines.heads.head_file import HEAD_FILE, load_head, load_head_of
from fovea_engines.heads.recognise import recognise
from fovea_engines.heads.registry import FAMILIES
from fovea_engines.results.classes import Classes
from fovea_engines.results.maps import DepthMap
from fovea_engines.results.options import PredictOptions
from fovea_engines.session import TensorSpec
from fovea_preprocess.errors import InferenceFailed, InvalidModel, NotFound, UnsupportedModel

SIZE = (320, 640)
START = """
import numpy as np
from fovea_engines.api import *

class Mine(CustomHead):
    outputs = ("a",)
"""
IMAGE = [TensorSpec("image", "float32", (-1, 3, *SIZE))]


@pytest.fixture
def head(tmp_path):
    """Load a head, opened for the outputs that it names."""

    def load(text: str):
        (tmp_path / "mine.py").write_text(text)
        family = load_head(tmp_path / "mine.py")
        return family.open(tuple(family.written.outputs), SIZE, len(family.labels) or None)

    return load


def returning(code: str, fields: str = "") -> str:
    return f"{START}{fields}\n    def decode(self, outputs, options):\n        return {code}\n"


def decode(head, *arrays, row=0, **options):
    outputs = dict(zip(head.outputs, arrays, strict=True))
    return head.decode(outputs, row, PredictOptions(**options))


BOXES, SCORES = np.array([[0, 0, 9, 9], [5, 5, 20, 30], [8, 0, 90, 80]]), np.array([0.3, 0.9, 0.6])
IDS = np.array([0, 1, 2])
GIVEN = "Detections(np.array({}), np.array({}), np.array({}))"


def test_it_gets_its_image_of_the_batch_as_float32_of_its_own(head):
    mine = head(
        returning(
            "Classes(outputs['a'][0, :1].astype(int), outputs.pop('a')[0, 1:] * 1.0)",
            "    task = 'classify'",
        )
    )
    batch = np.array([[1, 0.5], [2, 0.25]], np.float16)
    for row in (0, 1):
        found = decode(mine, batch, row=row)
        assert isinstance(found, Classes)
        assert found.class_ids.tolist() == [row + 1]
        assert found.scores.dtype == np.float32
        found.scores[:] = 9
    assert batch[1].tolist() == [2, 0.25]


def test_objects_are_filtered_and_ordered_as_the_request_asks(head):
    mine = head(returning(GIVEN.format(BOXES.tolist(), SCORES.tolist(), IDS.tolist())))
    found = decode(mine, np.zeros((1, 1)))
    assert found.scores.tolist() == np.float32([0.9, 0.6, 0.3]).tolist()
    assert [each.dtype.name for each in found.arrays] == ["float32", "float32", "int32"]
    assert decode(mine, np.zeros((1, 1)), conf=0.5).class_ids.tolist() == [1, 2]
    assert decode(mine, np.zeros((1, 1)), classes=(0, 2)).class_ids.tolist() == [2, 0]
    assert decode(mine, np.zeros((1, 1)), max_det=1).boxes.tolist() == [[5, 5, 20, 30]]


ONE = "np.array([[0, 0, 8, 8]]), np.array([0.5]), np.array([0])"


@pytest.mark.parametrize(
    ("task", "fields", "part", "told"),
    [
        ("pose", "skeleton = PERSON", "keypoints=np.ones((1, 17, 3))", "keypoints of the result"),
        ("obb", "", "rotated=np.array([[4, 4, 8, 8, 0]])", "rotated of the result"),
        (
            "segment",
            "",
            "masks=Masks((np.ones((2, 2)),), np.zeros((1, 4)), np.zeros((1, 4)), (8, 8))",
            "segment without a mask for each",
        ),
    ],
)
def test_objects_have_what_their_task_has(head, task, fields, part, told):
    known = f"    task = {task!r}\n    {fields or 'labels = ()'}"
    found = decode(head(returning(f"Detections({ONE}, {part})", known)), np.zeros((1, 1)))
    name = part.partition("=")[0]
    assert len(getattr(found, name)) == 1
    with pytest.raises(InferenceFailed, match=told):
        decode(head(returning(f"Detections({ONE})", known)), np.zeros((1, 1)))


def test_classes_are_filtered_and_ordered_as_the_request_asks(head):
    classes = "Classes(np.array([4, 7, 2]), np.array([0.1, 0.5, 0.4]))"
    mine = head(returning(classes, "    task = 'classify'"))
    assert decode(mine, np.zeros((1, 1)), top_k=2).class_ids.tolist() == [7, 2]
    assert decode(mine, np.zeros((1, 1)), classes=(4, 7)).class_ids.tolist() == [7, 4]
    for wrong in ("Classes(None, np.ones(3))", "Classes(np.arange(2), np.ones(3))"):
        with pytest.raises(InferenceFailed, match="class_ids of the result"):
            decode(head(returning(wrong, "    task = 'classify'")), np.zeros((1, 1)))


def test_a_map_has_numbers(head):
    mine = head(returning("DepthMap(np.ones((2, 3), np.float32))", "    task = 'depth'"))
    assert isinstance(decode(mine, np.zeros((1, 1))), DepthMap)
    for wrong in ("np.full((2, 3), np.nan)", "None", "'a'"):
        mine = head(returning(f"DepthMap({wrong})", "    task = 'depth'"))
        with pytest.raises(InferenceFailed, match="DepthMap has"):
            decode(mine, np.zeros((1, 1)))


def test_nothing_found_may_be_of_any_type(head):
    mine = head(returning("Detections(np.zeros((0, 4)), np.zeros(0), np.zeros(0, int))"))
    assert len(decode(mine, np.zeros((1, 1)))) == 0


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("(1, 2)", "decode returns tuple, and the result of task detect is Detections"),
        (
            GIVEN.format([[1, 2, 3]], [0.5], [0]),
            r"boxes .* int64 \[1, 3\], and must be .* \[1, 4\]",
        ),
        (GIVEN.format([[0, 0, 1, 1]] * 2, [0.5], [0]), r"boxes of the result are int64 \[2, 4\]"),
        (GIVEN.format([[0, 0, 1, 1]], [0.5], [0.0]), "class_ids .* float64 .* whole numbers"),
        (GIVEN.format([[0, 0, 1, 1]], ["a"], [0]), "scores of the result are <U1"),
        (GIVEN.format([[0, 0, 1, np.nan]], [0.5], [0]).replace("nan", "np.nan"), "boxes .* NaN"),
        (
            GIVEN.format([[0, 0, 1, 1]], [5.5], [0]),
            "scores are from 5.5 to 5.5, and must be 0 to 1",
        ),
        (GIVEN.format([[0, 0, 1, 1]], [0.5], [2]), "class_ids are from 2 to 2, of 2 labels"),
        (GIVEN.format([[0, 0, 1, 1]], [0.5], [-1]), "class_ids are from -1 to -1"),
        ("Detections(None, None, None)", r"scores of the result are None, and must be numbers"),
    ],
)
def test_a_result_that_cannot_be_names_the_line_of_decode(head, code, told):
    mine = head(returning(code, "    labels = ('x', 'y')"))
    with pytest.raises(InferenceFailed, match=rf"mine.py, line 8: {told}"):
        decode(mine, np.zeros((1, 1)))


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("outputs['b']", "line 9: KeyError: 'b'"),
        ("np.zeros(3).reshape(2, 2)", "line 9: ValueError: cannot reshape"),
        ("exit()", "line 9: SystemExit: None"),
        ("self.decode(outputs, options)", "line 9: RecursionError"),
    ],
)
def test_an_error_names_its_line(head, code, told):
    with pytest.raises(InferenceFailed, match=told):
        decode(head(returning(code)), np.zeros((1, 1)))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("x = (", "mine.py, line 1: SyntaxError"),
        ("import nothing_like_it", "mine.py, line 1: ModuleNotFoundError"),
        ("import sys\nsys.exit(1)", "mine.py, line 2: SystemExit: 1"),
        ("x = 1", "must have one class .* and has none: `fovea init --head`"),
        (START, "Mine has no method decode"),
        (returning("1") + returning("1").replace("Mine", "Yours"), "and has Mine, Yours"),
        (returning("1", "    task = 'find'"), "task is 'find', and must be one of detect, "),
        (returning("1", "    task = 'pose'"), "task pose needs `skeleton`"),
        (returning("1", "    outputs = 'a'"), "outputs is 'a', and must be names"),
        (returning("1", "    outputs = ()"), "must name the outputs of the model"),
        (returning("1", "    labels = (1, 2)"), r"labels is \(1, 2\), and must be names"),
        (
            returning("1", "    preprocess = {'fit': 'squeeze'}"),
            "preprocess: fit must be letterbox",
        ),
        (returning("1", "    preprocess = {'fits': 1}"), "preprocess: there is no field 'fits'"),
    ],
)
def test_a_file_that_has_no_such_class_is_refused(head, text, told):
    with pytest.raises(InvalidModel, match=told):
        head(text)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(NotFound, match=r"mine\.py cannot be read"):
        load_head(tmp_path / "mine.py")


def test_it_is_for_its_own_model_alone(head):
    """Other models are not compared with it, and two files of one name are two families."""
    names = {head(HEAD).family, head(f"{HEAD}\n").family}
    assert len(names) == 2
    assert names.isdisjoint(FAMILIES)
    for name in names:
        outputs = [
            TensorSpec(one, "float32", (-1, 5, 5, 5)) for one in FAMILIES[name].written.outputs
        ]
        assert recognise(IMAGE, outputs, {}).family is None
        found = recognise(IMAGE, outputs, {"task": "depth"}, name)
        assert (found.family, found.task, found.num_classes) == (name, "detect", 10)


def test_outputs_that_the_model_lacks_are_named(head):
    name = head(HEAD).family
    with pytest.raises(UnsupportedModel, match="reads the output where, which the model lacks"):
        recognise(IMAGE, [TensorSpec("what", "float32", (-1, 5))], {}, name)


def test_outputs_without_a_batch_are_told_and_taken(head):
    specs, rows = [TensorSpec("a", "float32", (-1, 6))], np.zeros((7, 6), np.float32)
    name = head(returning("1")).family
    with pytest.raises(UnsupportedModel, match=r"\[7, 6\] of one image.* `batched = False`"):
        recognise(IMAGE, specs, {}, name, lambda _: [{"a": rows}])
    code = "Detections(outputs['a'][:, :4] + [0, 0, 1, 1], outputs['a'][:, 4], np.zeros(7, int))"
    mine = head(returning(code, "    batched = False"))
    assert recognise(IMAGE, specs, {}, mine.family, lambda _: [{"a": rows}]).family == mine.family
    assert len(decode(mine, rows, conf=0)) == 7


def test_a_card_that_names_another_head_does_not_run_the_file(head, tmp_path):
    class Card:
        name, family = "mine", "yolov8"
        files: dict[str, str]

    Card.files = {HEAD_FILE: "0" * 64}
    (tmp_path / HEAD_FILE).write_text("raise SystemExit")
    with pytest.raises(InvalidModel, match="not the file of the build"):
        load_head_of(Path(tmp_path), Card, allow_code=True)
