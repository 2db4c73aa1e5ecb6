"""Odd calibration images: the build says what they lack, and so does the card."""

import json

import cv2
import numpy as np
import pytest
from tests.drawn import draw
from tests.engines.build.test_recognised_at_build import Notes
from tests.engines.tiny import SIZE, tiny_network

from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan
from fovea_engines.quantization.calibrate import Images, Variety
from fovea_preprocess.spec import PreprocessSpec

pytestmark = pytest.mark.real


def various(seed):
    return draw(SIZE, SIZE, seed)


def copy(seed):
    """One image, a little brighter every other time."""
    return np.minimum(draw(SIZE, SIZE, 0), 254) + np.uint8(seed % 2)


def small(seed):
    return cv2.resize(draw(SIZE, SIZE, seed), (16, 12), interpolation=cv2.INTER_AREA)


def page(seed):
    pixels, random = np.full((280, 210, 3), 255, np.uint8), np.random.default_rng(seed)
    for line in range(random.integers(20, 80), 270, 20):
        text = "".join(map(chr, random.integers(97, 123, 22)))
        cv2.putText(pixels, text, (10, line), cv2.FONT_HERSHEY_SIMPLEX, 0.4, (0, 0, 0))
    return pixels


COPIES = "only 1 of 16 images differ, and the others are copies or nearly so: give more scenes"
SMALL = "16 of 16 images are enlarged more than 4 times to 128x128 (one has 16x12 pixels): give"
PAGES = "16 of 16 images are mostly of one colour, as pages of text are: unless the camera sees"
FEW = "only 16 images to calibrate on: a hundred or more cover"


@pytest.mark.parametrize(
    ("make", "says"),
    [(various, []), (copy, [COPIES]), (small, [SMALL]), (page, [PAGES])],
)
def test_what_images_lack_is_said_by_build_card_and_inspect(tmp_path, fovea, make, says):
    folder = tmp_path / "images"
    folder.mkdir()
    for seed in range(16):
        cv2.imwrite(str(folder / f"{seed}.png"), make(seed))
    source = tiny_network(tmp_path / "m.onnx", size=2 * SIZE)
    plan = BuildPlan(
        source, "m", tmp_path / "r", precision="int8", calibration=folder, keep_float=()
    )
    notes = Notes()
    card = build(plan, notes)
    said = [note for note in notes.notes if note.startswith("calibration: ")]
    assert len(said) == len(card.calibration.remarks) == 1 + len(says)
    for note, remark, text in zip(said, card.calibration.remarks, [FEW, *says], strict=True):
        assert remark.startswith(text)
        assert note == f"calibration: {remark}"
    status, out, _ = fovea("inspect", "--json", tmp_path / "r" / "m" / "1")
    assert status == 0
    [entry] = json.loads(out)
    assert entry["card"]["calibration"]["remarks"] == list(card.calibration.remarks)
    status, out, _ = fovea("inspect", tmp_path / "r" / "m" / "1")
    shown = " ".join(out.replace("│", " ").split())
    assert all(text in shown for text in [FEW, *says])
    assert all(text[:30] in (tmp_path / "r" / "m" / "1" / "card.md").read_text() for text in says)
    # Of ranges that are used again, too.
    again = Notes()
    build(BuildPlan(source, "m", tmp_path / "r", precision="int8", calibration=folder), again)
    assert [note for note in again.notes if note.startswith("calibration: ")] == said


def test_real_photographs_lack_nothing(shared):
    """Sixty-four of COCO, which are not many, and larger than the input or nearly so."""
    images = Images.of(shared / "data" / "coco64" / "calibration", PreprocessSpec(640, 640))
    variety = Variety(images.spec)
    for _ in images.rows(variety):
        pass
    variety.check()
    assert variety.remarks() == ()


def test_images_of_one_scene_that_moves_are_not_copies():
    """Half of the set may be the same."""
    variety = Variety(PreprocessSpec(SIZE, SIZE))
    for seed in range(64):
        variety.add(various(seed // 2))
    assert variety.remarks() == ()
    variety.add(various(0))
    assert [remark.split(" differ")[0] for remark in variety.remarks()] == ["only 32 of 65 images"]
