"""Numbers of things in sentences."""

from dataclasses import replace

import pytest

from fovea_engines.plural import counted
from fovea_engines.repository.figures import Calibration
from fovea_engines.repository.wording import agreement_text, calibration_text


@pytest.mark.parametrize(
    ("number", "noun", "says"),
    [(0, "image", "0 images"), (1, "box", "1 box"), (2, "box", "2 boxes"),
     (3, "better class", "3 better classes")],
)  # fmt: skip
def test_one_is_no_plural(number, noun, says):
    assert counted(number, noun) == says


def test_what_a_card_says_of_one(card):
    one = replace(card.agreement, images=1, images_from=None, detections=1)
    assert agreement_text(one, "fp32").startswith("1 box before suppression, on 1 image, within ")
    assert agreement_text(one, "int8").startswith("1 detection on 1 image: ")
    assert "on 1 image" in agreement_text(replace(one, detections=0), "fp32")
    calibration = Calibration("minmax", 1, "", "", 1, (), reused=False)
    said = calibration_text(replace(card, calibration=calibration))
    assert said == "minmax of 1 image; 1 layer in INT8"
