"""Lines of text on maps that are made up, by hand and by RapidOCR's own program."""

import cv2
import numpy as np
import pytest
from tests.engines.heads.by_hand import HEIGHT, WIDTH, told
from tests.rapidocr import OPTIONS, off, program

from fovea_engines.heads.text import PpOcrDetection
from fovea_engines.results.options import PredictOptions
from fovea_engines.results.rotated import corners

HEAD = PpOcrDetection.open(("map",), None)
AS_RAPIDOCR = PredictOptions(conf=OPTIONS["box_thresh"])


def drawn(*lines, dtype=np.float32):
    """A map with lines cx cy w h degrees, and their probability."""
    found = np.zeros((HEIGHT, WIDTH), np.float32)
    for cx, cy, w, h, degrees, probability in lines:
        points = cv2.boxPoints(((cx - 0.5, cy - 0.5), (w, h), degrees))
        cv2.fillPoly(found, [points.round().astype(np.int32)], probability)
    return {"map": found[None, None].astype(dtype)}


def decode(outputs, **options):
    return HEAD.decode(outputs, 0, PredictOptions(**options))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_a_line_is_grown_by_its_area_over_its_length(dtype):
    outputs = {"map": np.zeros((1, 1, HEIGHT, WIDTH), dtype)}
    outputs["map"][0, 0, 100:120, 200:300] = 0.75
    found = decode(outputs)
    # 1.6 times 100 x 20 pixels over half of their outline.
    grown = 1.6 * 2000 / 120
    assert np.allclose(found.rotated, [(250, 110, 100 + grown, 20 + grown, 0)], atol=1e-3)
    assert np.allclose(
        found.boxes, [(200 - grown / 2, 100 - grown / 2, 300 + grown / 2, 120 + grown / 2)]
    )
    # Of the row and the column beside the line, which RapidOCR counts too.
    assert found.scores == pytest.approx([0.75 * 2000 / (101 * 21)], abs=1e-3)
    assert found.class_ids.tolist() == [0]


def test_a_turned_line_keeps_its_angle_and_the_best_is_first():
    found = decode(drawn((200, 100, 120, 20, -10, 0.6), (450, 200, 90, 16, 70, 0.9)))
    assert np.allclose(np.degrees(found.rotated[:, 4]), [70, -10], atol=1)
    assert np.allclose(found.rotated[:, :2], [(450, 200), (200, 100)], atol=1)
    assert found.scores[0] > 0.7 > found.scores[1]
    assert len(decode(drawn((200, 100, 120, 20, 0, 0.4)), conf=0.5)) == 0


def test_specks_and_empty_maps_have_no_lines():
    assert len(decode(drawn())) == 0
    outputs = drawn((300, 160, 80, 20, 0, 0.9))
    outputs["map"][0, 0, ::40, ::40] = 1
    assert len(decode(outputs)) == 1


def test_of_noise_the_largest_pieces_are_lines():
    noise = np.random.default_rng(0).random((1, 1, 640, 640), np.float32)
    noise[0, 0, :320] = 0
    noise[0, 0, 100:130, 100:400] = 0.9
    found = decode({"map": noise}, conf=0.5, max_det=3000)
    assert 0 < len(found) <= 1000
    assert found.rotated[:, 2].max() > 300


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_broken_numbers_harm_no_other_line(bad):
    outputs = drawn((200, 100, 120, 20, 0, 0.6), (450, 200, 90, 16, 0, 0.9))
    outputs["map"][0, 0, 200, 440] = bad
    found = decode(outputs)
    assert np.isfinite(found.rotated).all()
    assert np.abs(found.rotated[:, 0] - 200).min() < 1


def test_a_map_may_be_of_text_or_of_anything():
    outputs = drawn((200, 100, 120, 20, 0, 0.6))
    undecided = told(outputs)
    assert undecided.family is None
    assert "--head u2net" in undecided.reason
    assert "--head ppocr-det" in undecided.reason
    named = told(outputs, family="ppocr-det")
    assert (named.family, named.task, named.labels) == ("ppocr-det", "text", ("text",))
    assert told(outputs, {"task": "text"}).family == "ppocr-det"
    assert told(outputs, {"task": "saliency"}).family is None
    logits = {"map": outputs["map"] * 9 - 4}
    assert "not a probability" in told(logits, {"task": "text"}).reason


@pytest.mark.real
@pytest.mark.parametrize("seed", range(5))
def test_lines_of_any_angle_are_those_of_rapidocr(monkeypatch, seed):
    _, program_of = program(monkeypatch)
    random = np.random.default_rng(seed)
    lines = [
        (*random.uniform(50, 590, 2), random.uniform(15, 110), random.uniform(5, 22),
         random.uniform(-90, 90), random.uniform(0.4, 0.95))
        for _ in range(14)
    ]  # fmt: skip
    outputs = {"map": np.zeros((1, 1, 640, 640), np.float32)}
    for line in lines:
        cv2.fillPoly(
            outputs["map"][0, 0],
            [cv2.boxPoints((line[:2], line[2:4], line[4])).astype(np.int32)],
            line[5],
        )
    outputs["map"][0, 0] = cv2.GaussianBlur(outputs["map"][0, 0], (5, 5), 0)
    found = HEAD.decode(outputs, 0, AS_RAPIDOCR)
    outlines = corners(found.rotated).clip(0, 639)
    expected, scores = program_of(outputs["map"], (640, 640))
    assert len(expected) == len(found) > 3
    for outline, score in zip(expected, scores, strict=True):
        far, which = off(outline, outlines)
        assert far <= 0.51  # it rounds
        assert found.scores[which] == pytest.approx(score, abs=1e-5)
