"""A real detector whose outputs no family knows, built with a head in a file."""

import numpy as np
import pytest
from tests.built import build
from tests.odd import HEAD, odd_model

from fovea_engines.build.plan import BuildPlan
from fovea_engines.engine import Engine
from fovea_engines.evaluation.samples import read_image
from fovea_engines.heads.head_file import load_head
from fovea_preprocess.errors import InvalidOption, UnsupportedModel

pytestmark = [pytest.mark.real, pytest.mark.slow]

COCO = HEAD.replace('    labels = tuple("0123456789")\n', "")


@pytest.fixture
def planned(shared, tmp_path):
    """Make the plan of a build with the head of this text."""
    source = odd_model(shared / "models" / "yolov8n.onnx", tmp_path / "odd.onnx")

    def plan(text: str, **options) -> BuildPlan:
        (tmp_path / "mine.py").write_text(text)
        family = load_head(tmp_path / "mine.py").family
        images = shared / "data" / "coco64" / "val"
        return BuildPlan(source, "odd", tmp_path / "r", family=family, images=images, **options)

    return plan


@pytest.mark.parametrize("options", [{"max_batch": 4}, {"precision": "int8"}], ids=str)
def test_the_agreement_check_runs_it(planned, shared, tmp_path, options):
    if "precision" in options:
        options |= {"calibration": shared / "data" / "coco64" / "calibration"}
    card = build(planned(COCO, **options))
    assert card.agreement.detections > 200
    assert card.agreement.quality > 0.9
    known = BuildPlan(shared / "models" / "yolov8n.onnx", "known", tmp_path / "r")
    build(known)
    pixels = read_image(shared / "data" / "bus.jpg")
    with (
        Engine.open(tmp_path / "r" / "odd" / "1", allow_code=True) as own,
        Engine.open(tmp_path / "r" / "known" / "1") as other,
    ):
        found, expected = (each.predict(pixels) for each in (own, other))
    # INT8 gives two people scores that are nearly equal.
    own, other = (each.take(np.argsort(each.boxes[:, 0])) for each in (found, expected))
    assert own.class_ids.tolist() == other.class_ids.tolist()
    np.testing.assert_allclose(own.boxes, other.boxes, atol=12 if "precision" in options else 0.1)


@pytest.mark.parametrize(
    ("right", "wrong", "reason"),
    [
        ("cy, cx, h, w =", "cx, cy, w, h =", "swapped"),
        ("256 * where", "where", "shares of its input"),
    ],
)
def test_a_decode_that_misreads_boxes_is_refused(planned, tmp_path, right, wrong, reason):
    assert right in COCO
    with pytest.raises(UnsupportedModel, match=reason):
        build(planned(COCO.replace(right, wrong)))
    assert not (tmp_path / "r" / "odd").exists()


def test_a_head_without_a_batch_takes_one_image_at_a_time(planned):
    text = COCO.replace("    outputs", "    batched = False\n    outputs")
    with pytest.raises(InvalidOption, match="leave --max-batch out"):
        planned(text, max_batch=2)
