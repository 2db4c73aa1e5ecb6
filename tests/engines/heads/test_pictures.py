"""Pictures made of images: told by their size and numbers, in RGB, compared by PSNR."""

import numpy as np
import pytest

from fovea_engines.heads.recognise import open_head, recognise
from fovea_engines.results.new_image import NewImage
from fovea_engines.results.options import PredictOptions
from fovea_engines.session import TensorSpec
from fovea_preprocess.errors import UnsupportedModel
from fovea_preprocess.letterbox import LetterboxMap

SIZE = (32, 48)
IMAGE = [TensorSpec("images", "float32", (1, 3, *SIZE))]
PHOTOGRAPH = np.random.default_rng(0).uniform(0.1, 0.9, (1, 3, 64, 96)).astype(np.float32)
SAME = PHOTOGRAPH[..., : SIZE[0], : SIZE[1]]
PICTURES = {"task": "image-to-image"}


def recognised(seen, family=None, *, beside=(), **metadata):
    outputs = [TensorSpec("out", "float32", seen.shape)]
    return recognise(
        IMAGE, outputs, metadata, family, lambda _: [{"out": seen}], other_inputs=beside
    )


def decoded(recognition, seen):
    return open_head(recognition, IMAGE).decode({"out": seen}, 0, PredictOptions())


@pytest.mark.parametrize(
    ("seen", "metadata", "family"),
    [
        (PHOTOGRAPH, {}, "image"),
        (PHOTOGRAPH[:, :1], {}, "image"),
        # Levels of 0 to 1 become black where 0 to 255 is taken.
        (PHOTOGRAPH / 255, {}, "super-resolution"),
        (PHOTOGRAPH[:, :1] / 255, {}, "super-resolution-grey"),
        (PHOTOGRAPH / 255, {"beside": ("enlarged",)}, "super-resolution"),
        # One as large as the image may be classes.
        (SAME, {}, None),
        (SAME, PICTURES, "image"),
        (SAME[:, :1], PICTURES, "image"),
        (np.full((1, 3, 64, 97), 0.5), {}, None),
        (np.full((1, 2, 64, 96), 0.5), {}, None),
        (np.full((1, 3, 32 * 9, 48 * 9), 0.5), {}, None),
    ],
)
def test_the_size_and_the_numbers_tell_a_picture(seen, metadata, family):
    found = recognised(seen, **metadata)
    assert found.family == family or (family is None and found.task != "image")
    if family == "image":
        assert (found.task, found.nameless) == ("image", True)
        at = decoded(found, seen).values[5, 7]
        np.testing.assert_array_equal(at, seen[0, :, 5, 7])


def test_a_user_names_the_levels():
    assert "--head image" in recognised(SAME).reason
    assert recognised(SAME, family="image").family == "image"
    want = decoded(recognised(PHOTOGRAPH), PHOTOGRAPH).levels
    for family, seen in (("image-255", PHOTOGRAPH * 255), ("image-signed", PHOTOGRAPH * 2 - 1)):
        found = decoded(recognised(seen, family=family), seen)
        np.testing.assert_allclose(found.levels, want, atol=1)
    with pytest.raises(UnsupportedModel):
        recognised(PHOTOGRAPH * 255, family="image")


def test_colours_are_those_of_rgb_and_what_is_no_number_is_unsound():
    head = open_head(recognised(PHOTOGRAPH), IMAGE)
    picture = decoded(recognised(PHOTOGRAPH), PHOTOGRAPH)
    np.testing.assert_array_equal(picture.in_rgb("RGB").values, picture.values)
    np.testing.assert_array_equal(picture.in_rgb("BGR").values, picture.values[..., ::-1])
    assert NewImage(picture.values[..., :1]).rgb.shape == (64, 96, 3)
    broken = PHOTOGRAPH.copy()
    assert head.unsound({"out": broken}, 0) is None
    broken[0, 1, 2, 3] = np.nan
    assert head.unsound({"out": broken}, 0) == "output out"


def test_agreement_is_the_distance_of_levels():
    picture = decoded(recognised(PHOTOGRAPH), PHOTOGRAPH)

    def off(by):
        return NewImage((picture.values + by).astype(np.float32))

    assert picture.similarity(picture) == 1
    assert picture.similarity(off(0.01)) == pytest.approx(0.99, abs=1e-5)  # 40 dB
    assert picture.similarity(NewImage(picture.levels)) == pytest.approx(1, abs=2e-3)
    assert picture.similarity(off(np.nan)) == 0


def test_a_stretched_image_gets_its_size_back():
    picture = NewImage(np.full((64, 96, 1), 0.5, np.float32))
    back = LetterboxMap(100, 50, 48, 32, 48, 32, 0, 0)
    assert picture.to_source(back).values.shape == (50, 100, 1)
    padded = LetterboxMap(40, 20, 48, 32, 40, 20, 0, 0)
    assert picture.to_source(padded).values.shape == (40, 80, 1)
