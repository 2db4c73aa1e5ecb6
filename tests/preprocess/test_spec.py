"""The spec as a value that goes into the engine card."""

from dataclasses import replace

import pytest

from fovea_preprocess.spec import PreprocessSpec
from fovea_preprocess.text import size_text

SPEC = PreprocessSpec(384, 640, anchor="top-left", mean=(0.1, 0.2, 0.3), max_scale=1.0)


def test_equal_specs_have_one_hash_and_one_digest() -> None:
    again = replace(SPEC)
    assert again == SPEC
    assert hash(again) == hash(SPEC)
    assert again.digest == SPEC.digest


def test_digests_of_specs_differ() -> None:
    assert len({SPEC.digest, PreprocessSpec(384, 640).digest, PreprocessSpec(640, 384).digest}) == 3


def test_row_shape() -> None:
    assert PreprocessSpec(384, 640).row_shape == (3, 384, 640)
    assert PreprocessSpec(384, 640, layout="NHWC").row_shape == (384, 640, 3)


# Sizes of memory as people read them.


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (64 << 20, "64 MiB"),
        (67_000_000, "63.9 MiB"),
        (3 << 30, "3072 MiB"),
        (10_000, "9.8 KiB"),
        (1 << 20, "1 MiB"),
        (1023, "1023 bytes"),
    ],
)
def test_sizes_are_in_a_unit_that_people_read(size, text):
    assert size_text(size) == text
