"""The limits that `python -m tools.house` prints hold."""

import pytest
from tools.house import ANNEXES, House, in_cycles


@pytest.fixture(scope="module")
def house():
    """Read by the process that has these tests, and not by each as it collects them."""
    return House()


def test_the_limits_hold(house):
    figures = house.figures()
    assert sum(figure.limit is not None for figure in figures) > 10
    over = [f for f in figures if f.limit is not None and f.value > f.limit]
    assert not over


def test_cycles_are_found():
    chain = {"a": {"b"}, "b": {"c"}, "c": set()}
    assert in_cycles(chain) == set()
    ring = chain | {"c": {"b"}}
    assert in_cycles(ring) == {"b", "c"}


@pytest.mark.parametrize("annex", ANNEXES)
def test_the_readme_of_an_annex_says_what_it_imports(annex, house):
    """`python -m tools.house --annexes` prints the lines."""
    text = (ANNEXES[annex] / annex / "README.md").read_text()
    assert f"\n{house.imports_line(annex)}\n" in text
