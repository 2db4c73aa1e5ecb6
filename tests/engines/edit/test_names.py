"""Renaming, metadata and operators."""

import numpy as np
import onnx
import pytest
from onnx import helper
from tests.engines.edit.edits import difference, model, noise, run
from tests.engines.tiny import constant, save

from fovea_engines.edit.names import (
    rename,
    replace_operators,
    strip_metadata,
    write_metadata,
)
from fovea_engines.heads.metadata import renamed_outputs
from fovea_engines.onnx_graph.load import load
from fovea_engines.onnx_graph.tensors import graph_inputs, graph_outputs, metadata_of
from fovea_preprocess.errors import InvalidOption

FACES = "heads/ultraface-rfb-320"


def test_outputs_exchange_their_names(shared):
    source = model(shared, FACES)
    edited = rename(source, {"scores": "boxes", "boxes": "scores", "input": "image"})
    assert difference(source, edited) == 0
    assert [o.name for o in graph_outputs(edited.model)] == ["boxes", "scores"]
    assert [i.name for i in graph_inputs(edited.model)] == ["image"]
    values = noise(1, 3, 240, 320)
    want, found = run(source, {"input": values}), run(edited.model, {"image": values})
    np.testing.assert_array_equal(found["boxes"], want["scores"])
    # Names inside branches follow.
    source = model(shared, "heads/tv-fcos")
    assert difference(source, rename(source, {"image": "photo", "boxes": "corners"})) == 0


def test_former_names_of_outputs_stay_in_the_metadata(shared):
    source = model(shared, FACES)
    once = rename(source, {"scores": "first", "input": "image"}).model
    assert renamed_outputs(metadata_of(once)) == {"first": "scores"}
    twice = rename(once, {"first": "second", "boxes": "corners"}).model
    assert renamed_outputs(metadata_of(twice)) == {"second": "scores", "corners": "boxes"}
    assert renamed_outputs(metadata_of(strip_metadata(twice).model)) == {
        "second": "scores",
        "corners": "boxes",
    }
    assert metadata_of(strip_metadata(source).model) == {}


@pytest.mark.parametrize(
    ("names", "says"),
    [
        ({"score": "s"}, "did you mean scores"),
        ({"scores": "boxes"}, "'boxes' cannot be a new name"),
        ({"scores": "245"}, "'245' cannot be a new name"),
        ({"scores": "x", "boxes": "x"}, "'x' cannot be a new name"),
        ({"scores": ""}, "'' cannot be a new name"),
    ],
)
def test_a_name_that_is_not_there_or_taken_is_refused(shared, names, says):
    with pytest.raises(InvalidOption, match=says):
        rename(model(shared, FACES), names)


def test_metadata_goes_and_comes(shared):
    source = model(shared, "heads/yolo11-obb")
    source.graph.node[0].doc_string = "/home/someone/train.py"
    bare = strip_metadata(source)
    assert difference(source, bare) == 0
    assert metadata_of(bare.model) == {}
    assert b"/home/someone" not in bare.model.SerializeToString()
    again = write_metadata(write_metadata(bare.model, {"task": "x"}).model, {"task": "obb"})
    assert metadata_of(again.model) == {"task": "obb"}
    assert "names" in metadata_of(source)


def test_an_operator_takes_the_place_of_another(tiny_model):
    source = load(tiny_model).proto
    edited = replace_operators(source, {"Sigmoid": "HardSwish"})
    assert difference(source, edited) > 0.1
    x = run(_showing(source, "all"), {"images": noise(1, 3, 64, 64)})["all"]
    found = run(_showing(edited.model, "one"), {"images": noise(1, 3, 64, 64)})["one"]
    np.testing.assert_allclose(found, x * np.clip(x / 6 + 0.5, 0, 1), atol=1e-5)


def _showing(source: onnx.ModelProto, name: str) -> onnx.ModelProto:
    shown = onnx.ModelProto.FromString(source.SerializeToString())
    shown.graph.output.add(name=name)
    return shown


@pytest.mark.parametrize(
    ("operators", "says"),
    [
        ({"Rel": "Elu"}, "did you mean Relu"),
        ({"Relu": "Eluu"}, "did you mean Elu"),
        ({"Relu": "HardSwish"}, "opset 14"),
        (
            {"Relu": "Add"},
            "'247'",
        ),
        ({"Conv": "MatMul"}, "MatMul has no attribute"),
        ({"Relu": "Cast"}, "Cast needs the attribute to"),
    ],
)
def test_an_operator_of_another_form_is_refused(shared, operators, says):
    with pytest.raises(InvalidOption, match=says):
        replace_operators(model(shared, FACES), operators)


def test_values_that_are_no_numbers_any_more_are_no_small_difference(tmp_path):
    """Log of negative values is NaN where Relu was 0."""
    nodes = [
        helper.make_node("Sub", ["images", "one"], ["s"]),
        helper.make_node("Relu", ["s"], ["out"]),
    ]
    image = ("images", [1, 3, 8, 8])
    one = [constant("one", np.float32(1))]
    source = load(save(tmp_path / "m.onnx", nodes, [image], [("out", image[1])], one)).proto
    assert difference(source, replace_operators(source, {"Relu": "Log"})) == np.inf
