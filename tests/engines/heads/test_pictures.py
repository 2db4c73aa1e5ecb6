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


def recognised(seen, family=None, *, beside=(), **metadata):
    outputs = [TensorSpec("out", "float32", seen.shape)]
    return recognise(IMAGE, outputs, metadata, family, lambda _: [{"out": seen}], beside=beside)


def decoded(recognition, seen):
    return open_head(recognition, IMAGE).decode({"out": seen}, 0, PredictOptions())


def test_a_larger_picture_is_one():
    found = recognised(PHOTOGRAPH)
    assert (found.family, found.task, found.nameless) == ("image", "image", True)
    np.testing.assert_array_equal(decoded(found, PHOTOGRAPH).values[5, 7], PHOTOGRAPH[0, :, 5, 7])
    assert recognised(PHOTOGRAPH[:, :1]).family == "image"


def test_levels_of_0_to_1_become_black_where_0_to_255_is_taken():
    assert recognised(PHOTOGRAPH / 255).family == "super-resolution"
    assert recognised(PHOTOGRAPH[:, :1] / 255).family == "super-resolution-grey"
    assert recognised(PHOTOGRAPH / 255, beside=("enlarged",)).family == "super-resolution"


def test_a_picture_as_large_as_the_image_may_be_classes():
    same = PHOTOGRAPH[..., : SIZE[0], : SIZE[1]]
    found = recognised(same)
    assert found.family is None
    assert "--head image" in found.reason
    assert recognised(same, family="image").family == "image"
    assert recognised(same, task="image-to-image").family == "image"
    assert recognised(same[:, :1], task="image-to-image").family == "image"


@pytest.mark.parametrize(
    ("family", "factor", "offset"), [("image-255", 255, 0), ("image-signed", 2, -1)]
)
def test_other_levels_are_named_by_the_user(family, factor, offset):
    seen = PHOTOGRAPH * factor + offset
    np.testing.assert_allclose(
        decoded(recognised(seen, family=family), seen).levels,
        decoded(recognised(PHOTOGRAPH), PHOTOGRAPH).levels,
        atol=1,
    )


def test_numbers_that_are_no_levels_are_refused():
    with pytest.raises(UnsupportedModel, match=r"not from 0 \(black\) to 1 \(white\)"):
        recognised(PHOTOGRAPH * 255, family="image")


@pytest.mark.parametrize(
    "shape", [(1, 3, 64, 97), (1, 3, 16, 24), (1, 2, 64, 96), (1, 3, 32 * 9, 48 * 9)]
)
def test_other_shapes_are_left_to_others(shape):
    assert recognised(np.full(shape, 0.5, np.float32)).task != "image"


def test_what_is_no_number_is_unsound():
    head = open_head(recognised(PHOTOGRAPH), IMAGE)
    broken = PHOTOGRAPH.copy()
    assert head.unsound({"out": broken}, 0) is None
    broken[0, 1, 2, 3] = np.nan
    assert head.unsound({"out": broken}, 0) == "output out"


def test_colours_are_those_of_rgb():
    picture = decoded(recognised(PHOTOGRAPH), PHOTOGRAPH)
    np.testing.assert_array_equal(picture.in_rgb("RGB").values, picture.values)
    np.testing.assert_array_equal(picture.in_rgb("BGR").values, picture.values[..., ::-1])
    grey = NewImage(picture.values[..., :1])
    assert grey.rgb.shape == (64, 96, 3)


def test_agreement_is_the_distance_of_levels():
    picture = decoded(recognised(PHOTOGRAPH), PHOTOGRAPH)

    def off(by):
        return NewImage((picture.values + by).astype(np.float32))

    assert picture.shared(picture) == 1
    assert picture.shared(off(0.01)) == pytest.approx(0.99, abs=1e-5)  # 40 dB
    assert picture.shared(NewImage(picture.levels)) == pytest.approx(1, abs=2e-3)
    assert picture.shared(off(np.nan)) == 0


def test_a_stretched_image_gets_its_size_back():
    picture = NewImage(np.full((64, 96, 1), 0.5, np.float32))
    back = LetterboxMap(100, 50, 48, 32, 48, 32, 0, 0)
    assert picture.to_source(back).values.shape == (50, 100, 1)
    padded = LetterboxMap(40, 20, 48, 32, 40, 20, 0, 0)
    assert picture.to_source(padded).values.shape == (40, 80, 1)
