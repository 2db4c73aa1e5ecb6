"""The window of live images, and the brightness of some of them."""

import numpy as np
import pytest
from tests.crops import crops, jpeg

from fovea_engines.repository.card import Baseline
from fovea_life.drift.window import IMAGES, LiveWindow
from fovea_preprocess.image import DecodedImage, brightness, decode_image


def test_darker_images_are_seen_by_their_brightness():
    built = [jpeg(each) for each in crops(0, 60)]
    window = LiveWindow(Baseline.of("crops", [], [brightness(each) for each in built]))
    [of] = window.baseline.quantities.values()
    for each in crops(1, 30):
        window.look(jpeg(each))
    assert of.distance(window.count()["brightness"]) < 0.1
    for each in crops(2, IMAGES, (0.2, 0.3)):
        window.look(jpeg((each * 0.4).astype(np.uint8)))
    live = window.count()["brightness"]
    assert live.sum() == IMAGES
    assert of.distance(live) > 0.25


@pytest.mark.parametrize("kind", [".jpg", ".png", ".webp", ".bmp"])
def test_the_brightness_is_that_of_all_pixels(kind):
    import cv2

    for pixels in (*crops(3, 4), np.full((5, 3, 3), 200, np.uint8)):
        data = cv2.imencode(kind, pixels)[1].tobytes()
        decoded = decode_image(data)
        true = float((decoded.pixels @ np.array((0.299, 0.587, 0.114))).mean()) / 255
        for image in (data, bytearray(data), DecodedImage(decoded.pixels, 1)):
            assert brightness(image) == pytest.approx(true, abs=0.02)


def test_what_is_no_image_is_not_counted_and_another_is_looked_at_later():
    window = LiveWindow(Baseline.of("crops", [], [0.5] * 60))
    window.next_look = float("inf")
    window.look(b"\xff\xd8\xff nothing")
    assert window.count()["brightness"].sum() == 0
    assert window.next_look < float("inf")
