"""HEAD answers the recorded requests as the older version did, on the repository that it wrote."""

import pytest
from tests.upgrade.conftest import Answers
from tests.upgrade.recorded import load
from tests.upgrade.same import differences

pytestmark = pytest.mark.slow

OLD = load("answers.json")


@pytest.mark.parametrize("name", OLD)
def test_http(name: str, answers: Answers) -> None:
    found = differences(OLD[name], answers[name], name)
    assert not found, "\n".join(found)
