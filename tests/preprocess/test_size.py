import pytest

from fovea_preprocess.text import size_text


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
