"""The layer list of a plan: written at build without a GPU, and read again."""

import json
from enum import Enum
from io import StringIO

import numpy as np
import onnx
import pytest
from rich.console import Console
from tests.engines import fake_tensorrt
from tests.engines.real import prepared, ranges
from tests.engines.rtx import trt  # noqa: F401  skips where TensorRT for RTX is not installed

from fovea_engines.backends.backend import Encoding
from fovea_engines.backends.tensorrt.builder import build_plan
from fovea_engines.backends.tensorrt.layers import (
    PlanLayer,
    PlanLayers,
    engine_layers,
    parse_layers,
)
from fovea_engines.backends.tensorrt.log import Log
from fovea_engines.backends.tensorrt.runtime import RTX, TENSORRT, Runtime, load_runtime
from fovea_engines.progress import Progress
from fovea_engines.quantization.half import to_half
from fovea_engines.quantization.qdq import quantise
from fovea_engines.repository.options import BuilderOptions, Profile
from fovea_engines.session import TensorSpec
from fovea_preprocess.errors import InvalidModel, NotFound
from fovea_server.cli.inspect import layer_table, layers_summary

pytestmark = pytest.mark.real

OPTIONS = BuilderOptions((Profile(1, 2, 4),), capabilities=("80", "89"))


@pytest.fixture(scope="module")
def plan(shared):
    """INT8 with float16 around it, and the box decoding in float32."""
    graph = quantise(prepared(shared, "yolov8n").graph, ranges(shared, "yolov8n"), Encoding.SIGNED)
    return build_plan(to_half(graph).SerializeToString(), OPTIONS, load_runtime(RTX))


def test_layers_have_the_precision_they_compute_in(plan):
    first = next(one for one in plan.layers.layers if one.type == "convolution")
    assert first.precision == "int8"
    assert [spec.shape for spec in first.inputs] == [(-1, 3, 640, 640)]
    [given] = first.outputs
    assert (given.dtype, given.shape) == ("float16", (-1, 16, 320, 320))
    kinds = {one.type: one.precision for one in plan.layers.layers}
    assert kinds["softmax"] == "float32"
    assert plan.layers.source == "network"


def test_weights_and_shapes_are_no_layers(plan):
    assert "constant" not in {one.type for one in plan.layers.layers}
    assert "int64" not in {one.precision for one in plan.layers.layers}
    assert not [one.name for one in plan.layers.layers if "weight" in one.name]
    # Whatever is left takes something, from the input on.
    assert all(one.inputs for one in plan.layers.layers)
    assert [spec.name for spec in plan.layers.layers[0].inputs] == ["images"]
    assert [spec.name for spec in plan.layers.layers[-1].outputs] == ["output0"]


def test_what_is_written_is_read(plan, tmp_path):
    plan.layers.write(tmp_path / "layers.json")
    assert PlanLayers.read(tmp_path / "layers.json") == plan.layers


def test_what_is_not_there_or_damaged_is_told(tmp_path):
    with pytest.raises(NotFound):
        PlanLayers.read(tmp_path / "layers.json")
    (tmp_path / "layers.json").write_text('{"source": "guess", "layers": []}')
    with pytest.raises(InvalidModel):
        PlanLayers.read(tmp_path / "layers.json")


def printed(layers: PlanLayers) -> str:
    console = Console(file=StringIO(), width=160)
    console.print(layer_table(layers))
    return console.file.getvalue()


def test_the_table_is_for_people(plan):
    text = printed(plan.layers)
    lines = [line for line in text.splitlines() if " convolution " in line]
    assert len(lines) == 64
    assert sum(" int8 " in line for line in lines) == 57
    assert "?x16x320x320" in lines[0]
    summary = layers_summary(plan.layers)
    assert summary.startswith(f"{len(plan.layers.layers)} layers, as they were built")
    assert "57 convolution int8" in summary


def test_names_are_no_markup():
    layer = PlanLayer("[/red]conv", "convolution", "float16", (), (TensorSpec("y", "float16", ()),))
    assert "[/red]conv" in printed(PlanLayers("network", (layer,)))


# Forms of what TensorRT's engine inspector says, by its documentation ("Engine Inspector";
# "Migrating IEngineInspector Usage from TensorRT 10.x to 11.x"): no GPU was here to ask.
def inspected(*tensor: tuple[str, object]) -> str:
    convolution = {
        "Name": "/conv/Conv + /act/Relu",
        "LayerType": "CaskConvolution",
        "Inputs": [{"Name": "x", "Dimensions": [-1, 3, 8, 8], **dict(tensor)}],
        "Outputs": [{"Name": "y", "Dimensions": [-1, 4, 8, 8], **dict(tensor)}],
        "TacticName": "sm80_xmma_fprop",
    }
    return json.dumps({"Layers": [convolution, {"Name": "signal", "LayerType": "signal"}]})


@pytest.mark.parametrize(
    ("said", "dtype"),
    [
        ([("Format/Datatype", "Half")], "float16"),
        ([("Format/Datatype", "Row major linear FP16 format (kLINEAR)")], "float16"),
        ([("Format/Datatype", "Row major linear FP32")], "float32"),
        ([("Format/Datatype", "Thirty-two wide channel vectorized row major Int8 format")], "int8"),
        ([("Format/Datatype", "BFloat16")], "bfloat16"),
        ([("DataType", "Int8"), ("Format", "Channel major INT8 format")], "int8"),
        ([("DataType", "UInt8"), ("Format", "Row major linear")], "uint8"),
    ],
)
def test_what_the_inspector_says_is_read(said, dtype):
    layers = parse_layers(inspected(*said))
    assert layers.source == "engine"
    takes, gives = TensorSpec("x", dtype, (-1, 3, 8, 8)), TensorSpec("y", dtype, (-1, 4, 8, 8))
    assert layers.layers == (
        PlanLayer("/conv/Conv + /act/Relu", "CaskConvolution", dtype, (takes,), (gives,)),
        PlanLayer("signal", "signal", "", (), ()),
    )


def test_a_precision_that_depends_on_shapes_is_that_of_the_weights():
    """As TensorRT 10 says it of an engine with a dynamic batch, if it has no context."""
    unknown = ("Format/Datatype", "N/A due to dynamic shapes")
    text = json.loads(inspected(unknown))
    text["Layers"][0]["Weights"] = {"Type": "Int8", "Count": 432}
    [layer, _] = parse_layers(json.dumps(text)).layers
    assert layer.precision == "int8"
    assert (layer.inputs[0].dtype, layer.outputs[0].dtype) == ("", "")
    [layer, _] = parse_layers(inspected(unknown)).layers
    assert layer.precision == ""


@pytest.mark.parametrize("text", ['{"Layers": ["conv", "relu"]}', '{"Layers": []}', "{}"])
def test_an_engine_without_detail_has_no_list(text):
    assert parse_layers(text) is None


def test_what_cannot_be_loaded_has_no_list():
    assert engine_layers(load_runtime(RTX), b"no plan", Progress()) is None


class InspectedTrt:
    """TensorRT 10 whose `Runtime` gives an engine, and whose inspector says a text or raises.

    Its objects are as those of the bindings: `execution_context` is set, or not.
    """

    ExecutionContextAllocationStrategy = fake_tensorrt.ExecutionContextAllocationStrategy
    LayerInformationFormat = Enum("LayerInformationFormat", ["ONELINE", "JSON"])
    __version__ = "10.16.1.11"
    execution_context = None

    def __init__(self, engine, says):
        self._engine, self._says = engine, says

    def Runtime(self, logger):  # noqa: N802  TensorRT's name
        return self

    def deserialize_cuda_engine(self, plan):
        return self

    def __getattr__(self, name):
        return getattr(self._engine, name)

    def create_engine_inspector(self):
        return self

    def get_engine_information(self, format):
        return self._says(self.execution_context)


@pytest.fixture
def lists(made, device):
    """The layers of an engine with a dynamic batch, by what its inspector says."""

    def lists(says, progress=None):
        runtime = Runtime(TENSORRT, InspectedTrt(made.load(), says), None, Log())
        with device.current():
            return engine_layers(runtime, b"", progress or Progress())

    return lists


def test_layers_are_asked_for_with_shapes(lists):
    def says(context):
        shapes = () if context is None else tuple(context.get_tensor_shape("x"))
        known = "Int8" if shapes == (4, 4) else "N/A due to dynamic shapes"
        return inspected(("Format/Datatype", known))

    assert lists(says).layers[0].precision == "int8"


def test_layers_without_a_context_are_listed_too(lists, device):
    device.fail("context", "enqueue")
    assert lists(lambda context: inspected(("DataType", "Half"))).layers[0].precision == "float16"


def test_control_characters_and_layers_without_a_name_do_not_matter(lists):
    text = inspected(("DataType", "Half")).replace("/act/Relu", "/act\x02\n/Relu")
    assert lists(lambda context: text).layers[0].name == "/conv/Conv + /act\x02\n/Relu"
    assert lists(lambda context: text.replace('"Name"', '"Title"')).layers[0].name == ""


def no_text(context):
    return b"\xff".decode()


def no_inspector(context):
    raise AttributeError("'NoneType' object has no attribute 'get_engine_information'")


def not_set(context):
    raise RuntimeError("Error in set optimization profile async.")


@pytest.mark.parametrize("says", [lambda context: "{no JSON", no_text, no_inspector, not_set])
def test_a_list_that_cannot_be_had_is_noted(lists, says):
    progress = Noted()
    assert lists(says, progress) is None
    [note] = progress.notes
    assert note.startswith("the layer list was made from the ONNX file")


class Noted(Progress):
    def __init__(self):
        super().__init__()
        self.notes = []

    def note(self, text):
        self.notes.append(text)


def test_an_input_that_is_left_out(tmp_path):
    """A Resize has an empty input where others have a region of interest."""
    nodes = [
        onnx.helper.make_node("Resize", ["x", "", "scales"], ["r"], "resize", mode="nearest"),
        onnx.helper.make_node("MatMul", ["r", "w"], ["y"], "matmul"),
    ]
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        nodes,
        "g",
        [value("x", onnx.TensorProto.FLOAT, ["batch", 3, 4, 4])],
        [value("y", onnx.TensorProto.FLOAT, ["batch", 3, 8, 2])],
        [
            onnx.numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "scales"),
            onnx.numpy_helper.from_array(np.ones((1, 1, 8, 2), np.float32), "w"),
        ],
    )
    model = onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", 19)], ir_version=9
    )
    found = build_plan(model.SerializeToString(), OPTIONS, load_runtime(RTX)).layers.layers
    assert {one.type for one in found} >= {"resize", "matrix_multiply"}
