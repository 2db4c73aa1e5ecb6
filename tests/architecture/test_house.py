"""The limits that `python -m tools.house` prints hold."""

import pytest
from tools.house import ANNEXES, House, in_cycles

HOUSE = House()
FIGURES = HOUSE.figures()


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.title)
def test_a_limit_holds(figure):
    assert figure.limit is None or figure.value <= figure.limit


def test_cycles_are_found():
    chain = {"a": {"b"}, "b": {"c"}, "c": set()}
    assert in_cycles(chain) == set()
    ring = chain | {"c": {"b"}}
    assert in_cycles(ring) == {"b", "c"}


@pytest.mark.parametrize("annex", ANNEXES)
def test_the_readme_of_an_annex_says_what_it_imports(annex):
    """`python -m tools.house --annexes` prints the lines."""
    text = (ANNEXES[annex] / annex / "README.md").read_text()
    assert f"\n{HOUSE.imports_line(annex)}\n" in text
