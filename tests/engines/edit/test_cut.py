"""Cutting a graph at named tensors."""

import numpy as np
import pytest
from onnx import TensorProto, helper
from tests.engines.edit.edits import difference, model, run

from fovea_engines.edit.cut import cut
from fovea_engines.onnx_graph.load import load
from fovea_engines.onnx_graph.tensors import graph_inputs, graph_outputs, metadata_of
from fovea_preprocess.errors import InvalidOption

BOXES, SCORES = "h_Concat27_0", "h_Transpose37_0"


def test_the_suppression_of_a_detector_is_dropped(shared):
    source = model(shared, "heads/tf-od")
    edited = cut(source, [], [BOXES, SCORES])
    assert difference(source, edited) == 0
    assert [(o.name, o.shape) for o in graph_outputs(edited.model)] == [
        (BOXES, (1, 3549, 4)),
        (SCORES, (1, 80, 3549)),
    ]
    assert not {"NonMaxSuppression", "TopK"} & {node.op_type for node in edited.model.graph.node}
    assert graph_inputs(edited.model) == graph_inputs(source)
    source = model(shared, "yolov10n")
    raw = cut(source, [], ["/model.23/Concat_3_output_0"]).model
    assert metadata_of(raw) == metadata_of(source) != {}


def test_front_and_back_make_what_the_whole_makes(shared):
    source = model(shared, "heads/tf-od")
    waist, ends = "body/output", [BOXES, SCORES]
    front, back = cut(source, [], [waist]).model, cut(source, [waist], ends).model
    assert [i.name for i in graph_inputs(back)] == [waist]
    image = np.random.default_rng(5).integers(0, 256, (1, 416, 416, 3), np.uint8)
    whole = run(cut(source, [], ends).model, {"input_tensor": image})
    found = run(back, run(front, {"input_tensor": image}))
    for name in ends:
        np.testing.assert_array_equal(found[name], whole[name])


def test_an_input_that_nothing_needs_any_more_is_dropped(shared):
    source = model(shared, "heads/rtdetrv2")
    assert len(graph_inputs(source)) == 2
    sizes = next(s.name for s in graph_inputs(source) if len(s.shape) == 2)
    image = next(s.name for s in graph_inputs(source) if len(s.shape) == 4)
    first = next(n for n in source.graph.node if image in n.input)
    edited = cut(source, [], [first.output[0]])
    assert [s.name for s in graph_inputs(edited.model)] == [image]
    assert sizes not in {name for node in edited.model.graph.node for name in node.input}


@pytest.mark.parametrize(
    ("inputs", "outputs", "says"),
    [
        ([], ["c-8"], "no tensor 'c-8'; did you mean c8"),
        ([], ["images"], "is an input"),
        (["output0"], [], "the cut leaves no node"),
        (["c8"], [], "depends on input 'images', through node 'c16'"),
        (["images", "c8"], ["c16"], "leave --input c8 out"),
        ([], ["conv"], "'conv' is a node"),
    ],
)
def test_a_cut_that_cannot_be_is_explained(tiny_model, inputs, outputs, says):
    source = load(tiny_model).proto
    for node in source.graph.node:
        node.name = node.output[0]
    source.graph.node[0].name = "conv"
    with pytest.raises(InvalidOption, match=says):
        cut(source, inputs, outputs)


def test_branches_keep_what_only_they_read(shared):
    """torchvision limits its boxes in an If."""
    source = model(shared, "heads/tv-fcos")
    edited = cut(source, [], ["boxes"])
    assert "If" in {node.op_type for node in edited.model.graph.node}
    assert [o.name for o in graph_outputs(edited.model)] == ["boxes"]
    assert difference(source, edited) == 0


def test_shapes_that_a_file_states_stay_and_no_others_are_added(tiny_model):
    source = load(tiny_model).proto
    del source.graph.value_info[:]
    stated = helper.make_tensor_value_info("c8", TensorProto.FLOAT, ["batch", 7, 8, 8])
    source.graph.value_info.append(stated)
    assert [*cut(source, [], ["output0"]).model.graph.value_info] == [stated]
