"""Numbers of things in sentences."""

from dataclasses import replace

import pytest

from fovea_engines.repository.figures import Calibration
from fovea_preprocess.text import counted


@pytest.mark.parametrize(
    ("number", "noun", "says"),
    [(0, "image", "0 images"), (1, "box", "1 box"), (2, "box", "2 boxes"),
     (3, "better class", "3 better classes")],
)  # fmt: skip
def test_one_is_no_plural(number, noun, says):
    assert counted(number, noun) == says


def test_what_a_card_says_of_one(card):
    one = replace(card.agreement, images=1, images_from=None, detections=1)
    assert one.text("fp32").startswith("1 box before suppression, on 1 image, within ")
    assert one.text("int8").startswith("1 detection on 1 image: ")
    assert "on 1 image" in replace(one, detections=0).text("fp32")
    calibration = Calibration("minmax", 1, "", "", 1, (), reused=False)
    said = replace(card, calibration=calibration).calibration_text
    assert said == "minmax of 1 image; 1 layer in INT8"
