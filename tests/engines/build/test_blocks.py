"""Layers in groups: each in one, in order, under names that people know."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engines.real import prepared

from fovea_engines.quantization.qdq import quantisable
from fovea_engines.quantization.search import blocks, select
from fovea_preprocess.errors import InvalidOption

pytestmark = pytest.mark.real

names = st.lists(st.text("ab1/._:", min_size=1, max_size=12), unique=True, max_size=80)


@given(names)
def test_every_layer_is_in_one_block_in_order(layers):
    found = blocks(layers)
    assert sorted(layer for block in found.values() for layer in block) == sorted(layers)
    for block in found.values():
        assert list(block) == sorted(block, key=layers.index)
    assert [block[0] for block in found.values()] == sorted(
        (block[0] for block in found.values()), key=layers.index
    )
    assert len(found) <= 32


@given(names)
def test_a_block_and_a_layer_are_picked_by_name(layers):
    for name, block in blocks(layers).items():
        assert select([name], layers) == block
    if layers:
        assert select(["*"], layers) == tuple(layers)
    with pytest.raises(InvalidOption, match="no layer that INT8 would touch"):
        select(["c"], layers)


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
