"""The limits that `python -m tools.house` prints hold."""

import pytest
from tools.house import House, in_cycles

FIGURES = House().figures()


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.title)
def test_a_limit_holds(figure):
    assert figure.limit is None or figure.value <= figure.limit


def test_cycles_are_found():
    chain = {"a": {"b"}, "b": {"c"}, "c": set()}
    assert in_cycles(chain) == set()
    ring = chain | {"c": {"b"}}
    assert in_cycles(ring) == {"b", "c"}
