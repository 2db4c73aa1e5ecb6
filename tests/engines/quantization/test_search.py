"""The search for blocks that INT8 hurts: layers in groups, ranked, and kept until it is enough."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engines.real import prepared

from fovea_engines.build.int8 import Sensitivity
from fovea_engines.progress import Progress
from fovea_engines.quantization.qdq import quantisable
from fovea_engines.quantization.search import blocks, keep_until, rank, select
from fovea_preprocess.errors import InvalidOption

pytestmark = pytest.mark.slow

GROUPS = {"a": ("a.1", "a.2"), "b": ("b.1",), "c": ("c.1",)}


@given(st.lists(st.text("ab1/._:", min_size=1, max_size=12), unique=True, max_size=80))
def test_every_layer_is_in_one_block_in_order_and_is_picked_by_name(layers):
    found = blocks(layers)
    assert sorted(layer for block in found.values() for layer in block) == sorted(layers)
    for name, block in found.items():
        assert list(block) == sorted(block, key=layers.index)
        assert select([name], layers) == block
    firsts = [block[0] for block in found.values()]
    assert firsts == sorted(firsts, key=layers.index)
    assert len(found) <= 32
    if layers:
        assert select(["*"], layers) == tuple(layers)
    with pytest.raises(InvalidOption):
        select(["c"], layers)


@pytest.mark.real
@pytest.mark.parametrize(
    ("name", "count", "first"),
    [
        ("yolov5n", 18, "model.0"),
        ("yolov8n", 17, "__module.model.0"),
        ("yolov10n", 18, "model.0"),
        ("yolox_nano", 25, "Conv_41"),
        ("mobilenetv2", 17, "Conv_0"),
        ("u2netp", 28, "Conv_0"),
    ],
)
def test_blocks_of_real_networks(shared, name, count, first):
    layers = quantisable(prepared(shared, name).graph)
    found = blocks(layers)
    assert (len(found), next(iter(found))) == (count, first)
    assert max(map(len, found.values())) <= 12


class Judged:
    """Agreement that is lost for each layer in INT8; remembers what it was asked."""

    def __init__(self, **loss: float) -> None:
        self._loss = {name.replace("_", "."): value for name, value in loss.items()}
        self.asked: list[set[str]] = []

    def __call__(self, floats) -> float:
        self.asked.append(set(floats))
        return max(0.0, 1 - sum(v for name, v in self._loss.items() if name not in set(floats)))


@pytest.mark.parametrize(
    ("budget", "kept", "reached"),
    [(0.5, [], 0.57), (0.8, ["b"], 0.87), (0.9, ["b", "c"], 0.97), (0.999, ["b", "c", "a"], 1.0)],
)
def test_blocks_are_ranked_by_their_gain_and_kept_until_the_budget_is_met(budget, kept, reached):
    quality = Judged(a_1=0.01, a_2=0.02, b_1=0.3, c_1=0.1)
    base = quality(())
    ranking = rank(GROUPS, base, quality, Progress())
    assert [one.block for one in ranking] == ["b", "c", "a"]
    assert [one.gain for one in ranking] == pytest.approx([0.3, 0.1, 0.03])
    assert ranking[0].quality == pytest.approx(base + 0.3)
    assert ranking[2].layers == ("a.1", "a.2")
    assert quality.asked[1:] == [{"a.1", "a.2"}, {"b.1"}, {"c.1"}]
    found, best = keep_until(budget, base, ranking, quality)
    assert [one.block for one in found] == kept
    assert best == pytest.approx(reached)
    assert len(quality.asked) - 4 == len(kept)


def test_blocks_that_hide_each_other_are_tried_alone_in_int8():
    quality = Judged(a_1=0.01, b_1=2.0, c_1=1.5)
    assert quality(()) == quality(("b.1",)) == quality(("c.1",)) == 0
    ranking = rank(GROUPS, 0.0, quality, Progress())
    assert [one.block for one in ranking] == ["b", "c", "a"]
    assert [one.gain for one in ranking] == pytest.approx([1, 1, 0.01])
    kept, reached = keep_until(0.9, 0.0, ranking, quality)
    assert [one.block for one in kept] == ["b", "c"]
    assert reached == pytest.approx(0.99)


def test_what_gains_nothing_is_not_kept_and_the_best_is():
    ranking = [
        Sensitivity("a", ("a.1",), 0.6, 0.1),
        Sensitivity("b", ("b.1",), 0.55, 0.05),
        Sensitivity("c", ("c.1",), 0.5, 0.0),
    ]
    # Together they are worse than the first alone.
    kept, reached = keep_until(0.9, 0.5, ranking, lambda layers: 0.6 - 0.01 * len(layers))
    assert [one.block for one in kept] == ["a"]
    assert reached == pytest.approx(0.59)
