"""Freeing and setting the batch: several rows at once are what each is alone."""

import numpy as np
import onnx
import pytest
from onnx import helper
from tests.engines.edit.edits import difference, model, noise, run
from tests.engines.tiny import constant, save, tiny_detector

from fovea_engines.edit.cut import cut
from fovea_engines.edit.input_shape import set_batch
from fovea_engines.onnx_graph.load import load
from fovea_engines.onnx_graph.tensors import graph_inputs, graph_outputs
from fovea_preprocess.errors import BuildError, Disagreement, UnsupportedModel

pytestmark = pytest.mark.slow


def reshapes(graph: onnx.ModelProto) -> list[list[int]]:
    constants = {t.name: onnx.numpy_helper.to_array(t).tolist() for t in graph.graph.initializer}
    return [constants[n.input[1]] for n in graph.graph.node if n.op_type == "Reshape"]


def test_a_static_detector_runs_two_rows_as_two_runs(shared):
    """Its attention and its grid are reshaped to [1, ...]."""
    source = cut(model(shared, "yolov10n"), [], ["/model.23/Concat_3_output_0"]).model
    assert [1, 2, 128, 400] in reshapes(source)
    freed = set_batch(source, None)
    assert [0, 2, 128, 400] in reshapes(freed.model)
    assert graph_outputs(freed.model)[0].shape == (-1, 84, 8400)
    rows = noise(2, 3, 640, 640)
    [together] = run(freed.model, {"images": rows}).values()
    alone = [run(source, {"images": row[None]}).popitem()[1] for row in rows]
    np.testing.assert_allclose(together, np.concatenate(alone), rtol=1e-3, atol=0.05)
    assert difference(source, freed, rows=2) is not None


def test_rows_in_the_middle_of_a_reshape_come_first_again(shared):
    """Channel shuffles are reshaped to [1, -1, 52, 52], and one Resize has sizes [1, ...]."""
    source = model(shared, "heads/nanodet-m-416")
    freed = set_batch(source, 3)
    assert graph_inputs(freed.model)[0].shape == (3, 3, 416, 416)
    assert {o.shape[0] for o in graph_outputs(freed.model)} == {3}
    rows = noise(3, 3, 416, 416)
    together = run(freed.model, {"input.1": rows})
    for i, row in enumerate(rows):
        for name, want in run(source, {"input.1": row[None]}).items():
            np.testing.assert_allclose(together[name][i : i + 1], want, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("old", "new"), [("batch", 2), (2, 4), (4, 1), (1, None)])
def test_any_batch_becomes_any_other(tmp_path, old, new):
    source = load(tiny_detector(tmp_path / "m.onnx", batch=old)).proto
    edited = set_batch(source, new)
    assert graph_inputs(edited.model)[0].shape[0] == (new or -1)
    assert graph_outputs(edited.model)[0].shape == (new or -1, 7, 84)
    assert difference(source, edited, rows=4) == 0


@pytest.mark.parametrize(
    ("name", "node"),
    [
        ("heads/tf-od", "h_Squeeze43"),
        ("heads/rfdetr", "/backbone/backbone.0/encoder/encoder/embeddings/Concat"),
        ("heads/yolov6-end2end", "/model/detect/Concat_7"),
    ],
)
def test_what_cannot_take_more_rows_is_named(shared, name, node):
    source = model(shared, name)
    with pytest.raises(UnsupportedModel, match=f"{node}.*cut before that node"):
        difference(source, set_batch(source, None), rows=2)


def test_rows_that_are_mixed_are_found(shared):
    """YOLOv10 gathers its best boxes from all rows by numbers that count one row."""
    source = model(shared, "yolov10n")
    with pytest.raises(Disagreement, match="Gather_3"):
        difference(source, set_batch(source, None), rows=2)


def test_an_operator_over_all_rows_is_found(tmp_path):
    nodes = [
        helper.make_node("Relu", ["images"], ["r"], "relu"),
        helper.make_node("Softmax", ["r"], ["s"], "over_rows", axis=0),
        helper.make_node("Reshape", ["s", "shape"], ["out"], "flat"),
    ]
    shape = constant("shape", np.array([1, 192]))
    image = ("images", [1, 3, 8, 8])
    path = save(tmp_path / "m.onnx", nodes, [image], [("out", [1, 192])], [shape])
    source = load(path).proto
    with pytest.raises(Disagreement, match="'over_rows'"):
        difference(source, set_batch(source, None), rows=2)


def test_a_model_of_one_image_a_call_has_no_batch(shared):
    with pytest.raises(BuildError):
        set_batch(model(shared, "heads/tv-fcos"), 2)
