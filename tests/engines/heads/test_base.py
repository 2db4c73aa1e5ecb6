"""What all heads share: families as classes, and which numbers can be read."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from fovea_engines.api import PredictOptions, YoloV8
from fovea_engines.heads.base import is_sound
from fovea_engines.heads.registry import FAMILIES


def test_families_are_named_after_their_heads():
    assert all(head.family == name for name, head in FAMILIES.items())


def test_a_class_as_another_family_has_other_values_of_its_own_variables():
    mine = FAMILIES["rfdetr"].as_family("mine", after=1)
    assert (mine.family, mine.after, mine.sized) == ("mine", 1, True)
    assert FAMILIES["rfdetr"].after == 0
    with pytest.raises(TypeError, match="no class variable afterwards"):
        FAMILIES["rfdetr"].as_family("mine", afterwards=1)


def test_heads_of_packages_may_be_dataclasses_with_slots():
    """As those of docs/how-to/extend.md were in 0.1."""

    @dataclass(frozen=True, slots=True)
    class Old(YoloV8):
        family: ClassVar[str] = "old"

    table = np.zeros((1, 6, 84), np.float32)
    table[0, :, 3] = 32, 16, 8, 4, 0.1, 0.9
    found = Old.open(("output0",), (64, 64)).decode({"output0": table}, 0, PredictOptions())
    assert (found.boxes.tolist(), found.class_ids.tolist()) == ([[28, 14, 36, 18]], [1])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_minus_infinity_is_a_score_of_none_beside_others(dtype):
    numbers = np.array([[3, -np.inf], [0, 1]], dtype)
    assert is_sound(numbers)
    assert is_sound(numbers[:, :0])
    assert is_sound(numbers.T)
    assert not is_sound(np.full(3, -np.inf, dtype))
    for bad in (np.nan, -np.nan, np.inf):
        for at in range(4):
            broken = numbers.copy()
            broken.reshape(-1)[at] = bad
            assert not is_sound(broken)
            assert not is_sound(broken[:, ::-1])
    assert is_sound(np.arange(3))
    assert not is_sound(np.array(np.nan, dtype))
