"""The results of all tasks as JSON and back: what is read is what was written, but for rounding.

Pixels are rounded to a hundredth, scores and angles to 1e-5, foregrounds to 8 bits, depths to 16.
"""

import base64
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from itertools import starmap
from typing import Any

import cv2
import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from fovea_engines import api
from fovea_engines.drawing.drawing import draw
from fovea_engines.results.attributes import Attribute, Attributes
from fovea_engines.results.classes import Classes, best_classes
from fovea_engines.results.detections import Detections
from fovea_engines.results.embedding import Embedding
from fovea_engines.results.map_encoding import NOTHING
from fovea_engines.results.maps import ClassMap, DepthMap, SoftMask
from fovea_engines.results.masks import Masks
from fovea_engines.results.new_image import NewImage
from fovea_engines.results.options import PredictOptions
from fovea_engines.results.reading import ReadText
from fovea_engines.results.registry import RESULT_OF, RESULTS, read_result
from fovea_engines.results.rotated import regular
from fovea_engines.results.skeleton import Skeleton
from fovea_engines.results.stage_results import FAILED, StageResult
from fovea_engines.results.task_result import TaskResult
from fovea_engines.results.vocabulary import Vocabulary
from fovea_preprocess.errors import InvalidResult
from fovea_server.offline.entry import Result
from fovea_server.offline.result_output import result_line, result_table

# Half of what is rounded to, and the last bit of a float32 beside it.
PIXEL, SCORE = 0.005 + 2e-3, 5e-6 + 1e-7
WORDS = Vocabulary(tuple('abc é"'), Skeleton(("nose", "tail")))
SIZES = st.tuples(st.integers(1, 40), st.integers(1, 40))


def floats(least: float, most: float) -> st.SearchStrategy[float]:
    return st.floats(
        np.float32(least).item(), np.float32(most).item(), width=32, allow_subnormal=False
    )


def tables(rows: int, *columns: int, least=0.0, most=1.0) -> st.SearchStrategy[Any]:
    return arrays(np.float32, (rows, *columns), elements=floats(least, most))


@st.composite
def masks(draw, count: int, size: tuple[int, int]) -> Masks:
    height, width = size
    windows = tuple(
        draw(arrays(np.float32, array_shapes(min_dims=2, max_dims=2, max_side=9),
                    elements=floats(-1, 1)))
        for _ in range(count)
    )  # fmt: skip
    ends = st.tuples(
        st.integers(-3, width), st.integers(-3, height), st.integers(1, 20), st.integers(1, 20)
    )
    rows = [draw(ends) for _ in range(count)]
    places = np.array([(x, y, x + w, y + h) for x, y, w, h in rows], np.float64).reshape(-1, 4)
    return Masks(windows, places, places, size)


@st.composite
def detections(draw, stage_results: bool = False) -> tuple[Detections, PredictOptions]:
    count, size = draw(st.integers(0, 5)), draw(SIZES)
    boxes = draw(tables(count, 4, least=-2000, most=65_535))
    scores = draw(tables(count))
    ids = draw(arrays(np.int32, count, elements=st.integers(0, 9)))
    kinds = st.sampled_from(["plain", "masks", "points", "rotated", "tracks", "stage_results"])
    kind, more = draw(kinds) if not stage_results else "stage_results", {}
    if kind == "masks":
        more["masks"] = draw(masks(count, size))
    elif kind == "points":
        points = draw(tables(count, 2, 3, least=-100, most=5000))
        points[..., 2] = np.abs(points[..., 2]) / 5000
        more["keypoints"] = points
    elif kind == "rotated":
        rows = draw(tables(count, 5, least=0, most=5000))
        rows[:, 4] = rows[:, 4] / 1000
        more["rotated"] = regular(rows)
    elif kind == "tracks":
        more["track_ids"] = draw(arrays(np.int32, count, elements=st.integers(-3, 99)))
    elif kind == "stage_results":
        more["stage_results"] = tuple(
            tuple(draw(st.lists(found, max_size=4))) for _ in range(count)
        )
    form = draw(st.sampled_from(["rle", "polygon", "png"]))
    return Detections(boxes, scores, ids, **more), PredictOptions(mask=form)


@st.composite
def classes(draw) -> tuple[Classes, PredictOptions]:
    count = draw(st.integers(1, 9))
    options = PredictOptions(top_k=draw(st.integers(1, 9)))
    return best_classes(draw(tables(count)), options), options


@st.composite
def attributes(draw) -> tuple[Attributes, PredictOptions]:
    options = PredictOptions(top_k=draw(st.integers(1, 9)))
    first, found = 0, []
    for name in "xy":
        count = draw(st.integers(1, 5))
        own = draw(tables(count))
        found.append(Attribute.of(name, own, first, options, exclusive=draw(st.booleans())))
        first += count
    return Attributes(tuple(found)), options


@st.composite
def embeddings(draw) -> tuple[Embedding, PredictOptions]:
    vector = draw(arrays(np.float32, st.integers(1, 20), elements=floats(-100, 100)))
    form = draw(st.sampled_from(["list", "base64"]))
    return Embedding(vector), PredictOptions(vector=form, normalize=draw(st.booleans()))


@st.composite
def texts(draw) -> tuple[ReadText, PredictOptions]:
    # The labels have a space, and an id beyond them is one, too.
    ids = draw(arrays(np.int32, st.integers(0, 12), elements=st.integers(0, 5)))
    return ReadText(ids, draw(tables(len(ids)))), PredictOptions()


@st.composite
def class_maps(draw) -> tuple[ClassMap, PredictOptions]:
    ids = st.sampled_from([0, 1, 2, NOTHING, draw(st.sampled_from([3, 254, 255, 300]))])
    values = draw(arrays(np.uint16, draw(SIZES), elements=ids))
    return ClassMap(values), PredictOptions(mask=draw(st.sampled_from(["rle", "png"])))


@st.composite
def foregrounds(draw) -> tuple[SoftMask, PredictOptions]:
    return SoftMask(draw(tables(*draw(SIZES)))), PredictOptions()


@st.composite
def depths(draw) -> tuple[DepthMap, PredictOptions]:
    least = draw(floats(-100, 1000))
    values = draw(tables(*draw(SIZES))) * draw(floats(0, 100)) + np.float32(least)
    return DepthMap(values, metres=draw(st.booleans())), PredictOptions()


@st.composite
def pictures(draw) -> tuple[NewImage, PredictOptions]:
    values = draw(tables(*draw(SIZES), draw(st.sampled_from([1, 3])), least=-0.1, most=1.1))
    return NewImage(values), PredictOptions()


def stage_result(field: str, found: TaskResult, first: str = "a") -> StageResult:
    """What a stage says, whose labels begin with a letter."""
    labels = tuple(chr(ord(first) + number) for number in range(5))
    return StageResult("stage", field, found, Vocabulary(labels), found.caption(labels))


found = st.one_of(
    attributes().map(lambda one: stage_result("attributes", one[0])),
    attributes().map(lambda one: stage_result("attributes", one[0], "k")),
    classes().map(lambda one: stage_result("classes", one[0])),
    embeddings().map(lambda one: stage_result("embedding", one[0])),
    texts().map(lambda one: stage_result("text", one[0])),
    st.just(StageResult("stage", "text", caption=FAILED, error=("invalid_image", "too small"))),
)
KINDS: dict[type[TaskResult], st.SearchStrategy[Any]] = {
    Detections: detections(),
    Classes: classes(),
    Attributes: attributes(),
    Embedding: embeddings(),
    ReadText: texts(),
    ClassMap: class_maps(),
    SoftMask: foregrounds(),
    DepthMap: depths(),
    NewImage: pictures(),
}


def written(result: TaskResult, options: PredictOptions) -> dict[str, Any]:
    """The answer for an image, as it is on the wire."""
    size = {"height": 1, "width": 1}
    match result:
        case ClassMap(ids=pixels) | SoftMask(values=pixels) | DepthMap(values=pixels):
            size = dict(zip(size, pixels.shape, strict=True))
        case Detections(masks=Masks(size=shape)):
            size = dict(zip(size, shape, strict=True))
    return orjson.loads(orjson.dumps(size | result.to_json(WORDS, options)))


def test_every_result_has_a_task_and_a_field_and_heads_of_others_can_return_it():
    assert set(KINDS) == set(RESULTS) == set(RESULT_OF.values())
    assert len({kind.field for kind in RESULTS}) == len(RESULTS)
    assert {kind.__name__ for kind in RESULTS} <= set(api.__all__)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_what_is_read_is_what_was_written(kind, data):
    result, options = data.draw(KINDS[kind])
    read = read_result(written(result, options), WORDS)
    assert type(read) is kind
    twice, once = (orjson.dumps(each.to_json(WORDS, options)) for each in (read, result))
    assert twice == once
    assert_same(result, read, options)


def near(one: Any, other: Any, off: float, **more: float) -> None:
    np.testing.assert_allclose(other, one, atol=off, **{"rtol": 0, **more})


def assert_same(one: Any, other: Any, options: PredictOptions) -> None:
    match one:
        case Detections():
            near(one.boxes, other.boxes, PIXEL)
            assert_same_objects(one, other, options)
        case Attributes():
            for mine, others in zip(one.found, other.found, strict=True):
                assert (others.name, others.exclusive) == (mine.name, mine.exclusive)
                assert others.class_ids.tolist() == mine.class_ids.tolist()
                near(mine.scores, others.scores, SCORE)
        case Embedding():
            near(one.norm, other.norm, 1e-6, rtol=1e-6)
            same = "unit" if options.normalize else "vector"
            assert getattr(other, same).tolist() == getattr(one, same).tolist()
        case ReadText():
            assert other.characters(WORDS.labels) == one.characters(WORDS.labels)
            near(one.score, other.score, SCORE)
    assert_same_map(one, other)
    if isinstance(one, Detections | Classes):
        assert other.class_ids.tolist() == one.class_ids.tolist()
    if isinstance(one, Detections | Classes | ReadText):
        near(one.scores, other.scores, SCORE)


def assert_same_map(one: Any, other: Any) -> None:
    match one:
        case ClassMap():
            assert (other.pixels() == one.pixels()).all()
        case SoftMask():
            near(one.pixels(), other.pixels(), 0.5 / 255 + 1e-6)
        case DepthMap():
            step = float(np.ptp(one.values.astype(np.float64))) / 65_535
            near(one.pixels(), other.pixels(), 0.51 * step, rtol=1e-6)
            ends = (one.values.min(), one.values.max(), one.metres)
            assert (other.values.min(), other.values.max(), other.metres) == ends
        case NewImage():
            assert (other.levels == one.levels).all()


def assert_same_objects(one: Detections, other: Detections, options: PredictOptions) -> None:
    if not len(one):
        return
    if one.keypoints is not None:
        near(one.keypoints, other.keypoints, PIXEL)
    if one.rotated is not None:
        near(one.rotated, other.rotated, PIXEL)
        near(one.rotated[:, 4], other.rotated[:, 4], SCORE)
    if one.track_ids is not None:
        assert other.track_ids.tolist() == np.maximum(one.track_ids, 0).tolist()
    if one.masks is not None and options.mask != "polygon":
        for index in range(len(one)):
            assert (other.masks.bitmap(index) == one.masks.bitmap(index)).all()
    for mine, others in zip(one.stage_results or (), other.stage_results or (), strict=False):
        # Two stages may share a place, where the later one stays.
        fields = {"error" if each.error else each.field for each in mine}
        assert {each.field for each in others} == fields


@given(arrays(np.bool_, SIZES))
def test_outlines_of_a_mask_are_outlines_of_what_they_enclose(bitmap):
    """Holes are filled, and what is one pixel wide is lost; what is left stays."""
    window = bitmap.astype(np.float32) - 0.5
    place = np.array([[0, 0, bitmap.shape[1], bitmap.shape[0]]], np.float64)
    one = Detections(
        np.zeros((1, 4), np.float32),
        np.ones(1, np.float32),
        np.zeros(1, np.int32),
        Masks((window,), place, place, bitmap.shape),
    )
    options = PredictOptions(mask="polygon")
    answer = written(one, options)
    read = read_result(answer, WORDS)
    assert read.to_json(WORDS, options)["detections"] == answer["detections"]


def png_of(shape):
    return base64.b64encode(cv2.imencode(".png", np.full(shape, 255, np.uint8))[1]).decode()


DOT, SQUARE = png_of((1, 1)), png_of((2, 2))


def object_with(**fields):
    box = {"x1": 0, "y1": 0, "x2": 1, "y2": 1}
    return {"detections": [{"box": box, "class_id": 0, "score": 0.5} | fields], "height": 2,
            "width": 2}  # fmt: skip


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (object_with(class_id=2_000_000_000), "no model has a class 2000000000"),
        (object_with(class_id=-1), "no model has a class -1"),
        (object_with(mask={"size": [100_000, 100_000], "counts": "0"}), "pixels of its image"),
        ({"semantic": {"classes": []}, "height": 100_000, "width": 100_000}, "100000 x 100000"),
        (object_with(mask={"size": [3, 2], "counts": "6"}), "pixels of its image"),
        (object_with(mask={"size": [2, 2], "left": -1, "top": 0, "png": DOT}), "edge of"),
        (object_with(mask={"size": [2, 2], "left": 1, "top": 1, "png": SQUARE}), "edge of"),
        ({"depth": {"min": 0, "unit": None}}, "max"),
        ({"saliency": {"share": 0.5, "png": "no base64"}, "height": 2, "width": 2}, "."),
        ({"saliency": {"share": 0.5, "png": SQUARE}, "height": 2, "width": 3}, "3x2"),
        ({"semantic": {"classes": [], "png": SQUARE}, "height": 1, "width": 1}, "1x1"),
        ({"embedding": {"norm": 1, "normalised": False, "data": "!AACAPw=="}}, "."),
        ({"picture": {"width": 1, "height": 1, "png": "AAAA"}}, "not an image"),
        ({"semantic": {"classes": [{"class_id": 1}]}, "height": 2, "width": 2}, "pixels"),
        (object_with(keypoints=[{"x": 0, "y": 0, "score": 1}] * 3), "3"),
        (object_with(box={"x1": 0, "y1": [0, 1], "x2": 1, "y2": 1}), "."),
        (object_with(box={"x1": None, "y1": 0, "x2": 1, "y2": 1}), "finite"),
        (object_with(mask={"size": [2, 2], "polygons": [[1e300, 0, 1, 1]]}), "outline"),
        ({}, "tensors"),
        ({"tensors": [{"name": "odd"}]}, "datatype"),
        ({"detections": [{"box": {"x1": 0}}]}, "class_id"),
        *(
            ({"semantic": {"classes": [{"class_id": 1, "mask": {"size": [2, 2], "counts": c}}]},
              "height": 2, "width": 2}, "run lengths")
            for c in ("", "P", "9", "5" * 20, "T" * 20)
        ),
    ],
)  # fmt: skip
def test_another_answer_is_refused(answer, why):
    with pytest.raises(InvalidResult, match=why):
        read_result(answer, WORDS)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda each: (
        st.lists(each, max_size=3) | st.dictionaries(st.text(max_size=3), each, max_size=3)
    ),
    max_leaves=4,
)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every list and object in JSON, with the index or the name of each of its parts."""
    if isinstance(value, str) or not isinstance(value, list | dict):
        return []
    keys = list(value) if isinstance(value, dict) else range(len(value))
    return [pair for key in keys for pair in ((value, key), *places(value[key]))]


@st.composite
def damaged(draw) -> dict[str, Any]:
    """An answer of which parts are left out, are something else, or stand where others do."""
    result, options = draw(st.one_of(*KINDS.values()))
    if draw(st.booleans()):
        options = replace(options, mask="none")
    answer = written(result, options)
    for _ in range(draw(st.integers(0, 3))):
        if not (there := places(answer)):
            break
        (part, key), (other, name) = draw(st.tuples(*[st.sampled_from(there)] * 2))
        how = draw(st.sampled_from(["leave out", "another", "swap"]))
        if how == "leave out":
            del part[key]
        elif how == "another":
            part[key] = draw(JSON)
        else:
            part[key] = deepcopy(other[name])
    return answer


@given(damaged())
def test_any_json_is_one_error_or_can_be_shown_and_drawn(answer):
    """Whatever a server, a journal or a capture has."""
    for vocabulary in (WORDS, None):
        result = Result(answer, vocabulary)
        try:
            result.check()
        except InvalidResult:
            continue
        if result.found is None:
            assert "tensors" in answer
            continue
        result_table(result)
        result_line(result)
        width, height = result.size
        if not isinstance(result.found, Embedding) and width * height < 1e5:
            with suppress(InvalidResult):  # its map is left out
                draw(result.found, np.zeros((height, width, 3), np.uint8), result.vocabulary)


def test_raw_tensors_have_no_result():
    assert read_result({"tensors": [], "reason": "odd"}, WORDS) is None


def test_a_picture_is_of_the_labels_of_its_stage():
    """What a pipeline adds has the words of another model, and these come with it."""
    rows = [{"class_id": 3, "class_name": "red", "score": 0.75}]
    answer = {
        "detections": [
            {
                "box": {"x1": 0.0, "y1": 0.0, "x2": 1.0, "y2": 1.0},
                "score": 0.5,
                "class_id": 0,
                "class_name": "a",
                "classes": rows,
                "text": {"text": "ß1", "score": 0.5, "characters": list(starmap(
                    lambda character, score: {"character": character, "score": score},
                    [("ß", 0.25), ("1", 0.75)],
                ))},
            }
        ]
    }  # fmt: skip
    read = read_result(answer, WORDS)
    assert [each.caption for each in read.stage_results[0]] == ["red", "ß1"]
    assert read.to_json(WORDS, PredictOptions()) == answer
