"""The batches that an engine is made for, as they are typed."""

import pytest

from fovea_engines.repository.options import Profile
from fovea_preprocess.errors import InvalidOption


@pytest.mark.parametrize("text", ["1,4,8", " 1, 4 ,8 "])
def test_a_profile_is_read(text):
    assert Profile.parse(text) == Profile(1, 4, 8)
    assert str(Profile.parse(text)) == "1,4,8"


@pytest.mark.parametrize(
    "text", ["", "4", "1,4", "1,4,8,16", "1;4;8", "a,b,c", "1,4,", "-1,4,8", "1.5,2,3"]
)
def test_what_is_no_profile_is_told_how(text):
    with pytest.raises(InvalidOption, match="1,4,8"):
        Profile.parse(text)


@pytest.mark.parametrize("text", ["0,1,2", "4,1,8", "1,8,4"])
def test_batches_ascend(text):
    with pytest.raises(InvalidOption, match=f"profile is {text}; .* must ascend from 1"):
        Profile.parse(text)
