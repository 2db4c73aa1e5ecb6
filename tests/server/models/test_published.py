"""Whatever shapes outputs have, a server loads what a build publishes, and answers."""

import numpy as np
import onnx
import pytest
import tritonclient.http as triton
from onnx import TensorProto, helper
from tests.engines.tiny import constant
from tests.serving import start_server

from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan

pytestmark = pytest.mark.slow

SIDE = 32
# Name -> the nodes from the mean of each image [rows, 1], or from the image, and what a client gets
# of two images, or of one where the batch is fixed.
KINDS = {
    "a-number-an-image": ([("Squeeze", ["mean", "one"])], "float", ["batch"], (2, 1)),
    "a-flag-an-image": (
        [("Greater", ["mean", "half"]), ("Squeeze", ["0", "one"])],
        "bool",
        ["batch"],
        (2, 1),
    ),
    "an-id-an-image": (
        [("Greater", ["mean", "half"]), ("Squeeze", ["0", "one"]), ("Cast", ["1"])],
        "int64",
        ["batch"],
        (2, 1),
    ),
    "a-column": ([("Identity", ["mean"])], "float", ["batch", 1], (2, 1)),
    "one-number": ([("ReduceMean", ["images", "all"])], "float", [], ()),
    "a-number-of-one": ([("Squeeze", ["mean", "one"])], "float", [1], (1,)),
    "a-map-of-flags": (
        [("Greater", ["images", "half"])],
        "bool",
        ["batch", 3, SIDE, SIDE],
        (2, 3, SIDE, SIDE),
    ),
}
TYPES = {"float": TensorProto.FLOAT, "bool": TensorProto.BOOL, "int64": TensorProto.INT64}


def write(path, nodes, kind, shape, beside):
    """Write a network whose output `value` comes of nodes; `beside` it may have a usual one."""
    made = [
        helper.make_node("GlobalAveragePool", ["images"], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["colours"]),
        helper.make_node("ReduceMean", ["colours"], ["mean"], axes=[1]),
    ]
    for number, (name, inputs) in enumerate(nodes):
        last = number == len(nodes) - 1
        more = {"to": TensorProto.INT64} if name == "Cast" else {}
        if name == "ReduceMean":
            inputs, more = inputs[:1], {"keepdims": 0}
        made.append(helper.make_node(name, inputs, ["value" if last else str(number)], **more))
    outputs = [helper.make_tensor_value_info("value", TYPES[kind], shape)]
    batch = "batch" if "batch" in shape else 1
    if beside:
        made.append(helper.make_node("Identity", ["colours"], ["more"]))
        outputs.append(helper.make_tensor_value_info("more", TensorProto.FLOAT, [batch, 3]))
    image = helper.make_tensor_value_info("images", TensorProto.FLOAT, [batch, 3, SIDE, SIDE])
    weights = [constant("one", np.array([1])), constant("half", np.float32(0.5))]
    graph = helper.make_graph(made, "tiny", [image], outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("published")
    for name, (nodes, kind, shape, _) in KINDS.items():
        for beside in (False, True):
            source = folder / f"{name}{'-beside' if beside else ''}.onnx"
            write(source, nodes, kind, shape, beside)
            for backend in ("onnxruntime", "openvino"):
                rows = 4 if "batch" in shape and backend == "onnxruntime" else 1
                own = f"{source.stem}-{backend}"
                build(BuildPlan(source, own, folder / "r", backend, max_batch=rows))
    running = start_server(folder / "r", folder)
    yield running
    assert running.stop() == 0


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
@pytest.mark.parametrize("beside", ["", "-beside"])
@pytest.mark.parametrize("name", KINDS)
def test_what_is_published_answers(server, name, beside, backend):
    *_, shape, wanted = KINDS[name]
    rows = 2 if "batch" in shape and backend == "onnxruntime" else 1
    sent = np.random.default_rng(0).random((rows, 3, SIDE, SIDE), np.float32)
    given = triton.InferInput("images", sent.shape, "FP32")
    given.set_data_from_numpy(sent)
    with triton.InferenceServerClient(server.url.removeprefix("http://")) as client:
        found = client.infer(f"{name}{beside}-{backend}", [given]).as_numpy("value")
    assert found.shape == (wanted if rows == 2 or "batch" not in shape else (1, *wanted[1:]))
    if name in ("a-number-an-image", "a-column", "one-number", "a-number-of-one"):
        means = sent.mean(axis=(1, 2, 3))
        np.testing.assert_allclose(found.ravel(), means, rtol=1e-4)
