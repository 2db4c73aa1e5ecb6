"""A head of a user's own, in a file: what its class may be, and what its results must be."""

from concurrent.futures import ThreadPoolExecutor
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
NOTHING = np.zeros((1, 1))


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


def of_task(task: str, code: str) -> str:
    return returning(code, f"    task = {task!r}")


def objects(boxes, scores, ids) -> str:
    return f"Detections(np.array({boxes}), np.array({scores}), np.array({ids}))"


def decode(head, *arrays, row=0, **options):
    outputs = dict(zip(head.outputs, arrays or [NOTHING], strict=True))
    return head.decode(outputs, row, PredictOptions(**options))


def test_it_gets_its_image_of_the_batch_as_float32_of_its_own(head):
    taken = "Classes(outputs['a'][0, :1].astype(int), outputs.pop('a')[0, 1:] * 1.0)"
    mine = head(of_task("classify", taken))
    batch = np.array([[1, 0.5], [2, 0.25]], np.float16)
    for row in (0, 1):
        found = decode(mine, batch, row=row)
        assert isinstance(found, Classes)
        assert found.class_ids.tolist() == [row + 1]
        assert found.scores.dtype == np.float32
        found.scores[:] = 9
    assert batch[1].tolist() == [2, 0.25]


def test_results_are_filtered_and_ordered_as_the_request_asks(head):
    boxes = [[0, 0, 9, 9], [5, 5, 20, 30], [8, 0, 90, 80]]
    mine = head(returning(objects(boxes, [0.3, 0.9, 0.6], [0, 1, 2])))
    found = decode(mine)
    assert found.scores.tolist() == np.float32([0.9, 0.6, 0.3]).tolist()
    assert [each.dtype.name for each in found.arrays] == ["float32", "float32", "int32"]
    assert decode(mine, conf=0.5).class_ids.tolist() == [1, 2]
    assert decode(mine, classes=(0, 2)).class_ids.tolist() == [2, 0]
    assert decode(mine, max_det=1).boxes.tolist() == [[5, 5, 20, 30]]
    none = returning("Detections(np.zeros((0, 4)), np.zeros(0), np.zeros(0, int))")
    assert len(decode(head(none))) == 0
    classes = "Classes(np.array([4, 7, 2]), np.array([0.1, 0.5, 0.4]))"
    mine = head(of_task("classify", classes))
    assert decode(mine, top_k=2).class_ids.tolist() == [7, 2]
    assert decode(mine, classes=(4, 7)).class_ids.tolist() == [7, 4]
    mine = head(of_task("depth", "DepthMap(np.ones((2, 3), np.float32))"))
    assert isinstance(decode(mine), DepthMap)


ONE = "np.array([[0, 0, 8, 8]]), np.array([0.5]), np.array([0])"
MASKS = "masks=Masks((np.ones((2, 2)),), np.zeros((1, 4)), np.zeros((1, 4)), (8, 8))"


@pytest.mark.parametrize(
    ("task", "part"),
    [
        ("pose", "keypoints=np.ones((1, 17, 3))"),
        ("obb", "rotated=np.array([[4, 4, 8, 8, 0]])"),
        ("segment", MASKS),
    ],
)
def test_objects_have_what_their_task_has(head, task, part):
    known = f"    task = {task!r}\n    skeleton = {'PERSON' if task == 'pose' else None}"
    found = decode(head(returning(f"Detections({ONE}, {part})", known)))
    assert len(getattr(found, part.partition("=")[0])) == 1
    with pytest.raises(InferenceFailed):
        decode(head(returning(f"Detections({ONE})", known)))


BOX = [[0, 0, 1, 1]]


@pytest.mark.parametrize(
    "code",
    [
        "(1, 2)",
        objects([[1, 2, 3]], [0.5], [0]),
        objects(BOX * 2, [0.5], [0]),
        objects(BOX, [0.5], [0.0]),
        objects(BOX, ["a"], [0]),
        objects("[[0, 0, 1, np.nan]]", [0.5], [0]),
        objects("[[9, 0, 5, 7]]", [0.5], [0]),
        objects(BOX, [5.5], [0]),
        objects(BOX, [0.5], [2]),
        objects(BOX, [0.5], [-1]),
        "Detections(None, None, None)",
        "outputs['b']",
        "np.zeros(3).reshape(2, 2)",
        "exit()",
        "self.decode(outputs, options)",
    ],
)
def test_a_result_that_cannot_be_names_the_file_and_the_line_of_decode(head, code):
    mine = head(returning(code, "    labels = ('x', 'y')"))
    with pytest.raises(InferenceFailed, match=r"mine\.py"):
        decode(mine)


def test_what_it_prints_is_not_on_stdout(head, capsys):
    mine = head(f"print('begun')\n{returning('print(1) or 2')}")
    with pytest.raises(InferenceFailed):
        decode(mine)
    out, err = capsys.readouterr()
    assert (out, err) == ("", "begun\n1\n")


def test_an_interrupt_of_a_head_in_a_thread_does_not_end_that(head):
    mine = head(returning("(_ for _ in ()).throw(KeyboardInterrupt)"))
    with ThreadPoolExecutor() as pool, pytest.raises(InferenceFailed):
        pool.submit(decode, mine).result()


@pytest.mark.parametrize(
    ("task", "code"),
    [
        ("classify", "Classes(None, np.ones(3))"),
        ("classify", "Classes(np.arange(2), np.ones(3))"),
        ("depth", "DepthMap(np.full((2, 3), np.nan))"),
        ("depth", "DepthMap(None)"),
        ("depth", "DepthMap('a')"),
    ],
)
def test_classes_and_maps_have_numbers(head, task, code):
    with pytest.raises(InferenceFailed):
        decode(head(of_task(task, code)))


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("x = (", "mine.py, line 1: SyntaxError"),
        ("import nothing_like_it", "mine.py, line 1: ModuleNotFoundError"),
        ("import sys\nsys.exit(1)", "mine.py, line 2: SystemExit: 1"),
        ("raise MemoryError(7)", "mine.py, line 1: MemoryError: 7"),
        ("x = 1", "`fovea init --head`"),
        (START, "no method decode"),
        (returning("1") + returning("1").replace("Mine", "Yours"), "Mine, Yours"),
        (of_task("find", "1"), "detect, "),
        (of_task("pose", "1"), "`skeleton`"),
        (returning("1", "    outputs = 'a'"), "outputs"),
        (returning("1", "    outputs = ()"), "outputs"),
        (returning("1", "    labels = (1, 2)"), "labels"),
        (returning("1", "    preprocess = {'fit': 'squeeze'}"), "preprocess: fit"),
        (returning("1", "    preprocess = {'fits': 1}"), "'fits'"),
    ],
)
def test_a_file_that_has_no_such_class_is_refused(head, text, names):
    with pytest.raises(InvalidModel, match=names):
        head(text)


def test_a_file_that_is_not_there_or_not_the_one_of_the_build(tmp_path):
    with pytest.raises(NotFound):
        load_head(tmp_path / "mine.py")

    class Card:
        name, family = "mine", "yolov8"
        files: dict[str, str]

    Card.files = {HEAD_FILE: "0" * 64}
    (tmp_path / HEAD_FILE).write_text("raise SystemExit")
    with pytest.raises(InvalidModel):
        load_head_of(Path(tmp_path), Card, allow_code=True)


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
    with pytest.raises(UnsupportedModel, match="where"):
        recognise(IMAGE, [TensorSpec("what", "float32", (-1, 5))], {}, name)


def test_outputs_without_a_batch_are_told_and_taken(head):
    specs, rows = [TensorSpec("a", "float32", (-1, 6))], np.zeros((7, 6), np.float32)
    name = head(returning("1")).family
    with pytest.raises(UnsupportedModel, match="`batched = False`"):
        recognise(IMAGE, specs, {}, name, lambda _: [{"a": rows}])
    code = "Detections(outputs['a'][:, :4] + [0, 0, 1, 1], outputs['a'][:, 4], np.zeros(7, int))"
    mine = head(returning(code, "    batched = False"))
    assert recognise(IMAGE, specs, {}, mine.family, lambda _: [{"a": rows}]).family == mine.family
    assert len(decode(mine, rows, conf=0)) == 7
