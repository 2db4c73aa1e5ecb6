"""Whatever shapes outputs have, a server loads what a build publishes, and answers."""

import shutil

import numpy as np
import onnx
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton
from onnx import TensorProto, helper
from tests.engines.tiny import constant
from tests.serving import start_server

from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan
from fovea_engines.repository.config_pbtxt import CONFIG_FILE

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
    "one-number": ([("ReduceMean", ["images", "all"])], "float", [], (1,)),
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


def write_negated(folder):
    """Write a network of a number alone, in and out, as an engine without a card."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, []) for name in "xy")
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "tiny", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    folder.mkdir(parents=True)
    onnx.save(model, folder / "model.onnx")


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
    write_negated(folder / "r" / "negated" / "1")
    shutil.copytree(folder / "r" / "a-number-an-image-onnxruntime", folder / "r" / "without-dims")
    config = folder / "r" / "without-dims" / CONFIG_FILE
    text = config.read_text().replace("a-number-an-image-onnxruntime", "without-dims")
    before = "  dims: 1\n  reshape {\n  }\n"
    assert before in text
    config.write_text(text.replace(before, ""))
    running = start_server(folder / "r", folder)
    yield running
    assert running.stop() == 0


@pytest.fixture(params=[triton, triton_grpc], ids=["http", "grpc"])
def client(request, server):
    port = server.port if request.param is triton else server.grpc_port
    with request.param.InferenceServerClient(f"127.0.0.1:{port}") as made:
        yield request.param, made


def infer(client, model, name, sent):
    kind, made = client
    given = kind.InferInput(name, sent.shape, "FP32")
    given.set_data_from_numpy(sent)
    return made.infer(model, [given])


def output_shape(client, model):
    kind, made = client
    more = {"as_json": True} if kind is triton_grpc else {}
    *_, output = made.get_model_metadata(model, **more)["outputs"][:1]
    return [int(size) for size in output["shape"]]


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
@pytest.mark.parametrize("beside", ["", "-beside"])
@pytest.mark.parametrize("name", KINDS)
def test_what_is_published_answers(client, name, beside, backend):
    *_, shape, wanted = KINDS[name]
    rows = 2 if "batch" in shape and backend == "onnxruntime" else 1
    sent = np.random.default_rng(0).random((rows, 3, SIDE, SIDE), np.float32)
    model = f"{name}{beside}-{backend}"
    found = infer(client, model, "images", sent).as_numpy("value")
    assert found.shape == (wanted if rows == 2 or "batch" not in shape else (1, *wanted[1:]))
    told = output_shape(client, model)
    assert len(told) == found.ndim
    assert all(size in (-1, have) for size, have in zip(told, found.shape, strict=True))
    if name in ("a-number-an-image", "a-column", "one-number", "a-number-of-one"):
        means = sent.mean(axis=(1, 2, 3))
        np.testing.assert_allclose(found.ravel(), means, rtol=1e-4)


def test_a_number_alone_is_sent_and_answered_as_one(client):
    sent = np.array([2.5], np.float32)
    answer = infer(client, "negated", "x", sent)
    np.testing.assert_array_equal(answer.as_numpy("y"), -sent)
    assert output_shape(client, "negated") == [1]


def test_a_configuration_without_dims_loads(client):
    sent = np.zeros((2, 3, SIDE, SIDE), np.float32)
    assert infer(client, "without-dims", "images", sent).as_numpy("value").shape == (2, 1)


def test_what_no_server_could_load_is_not_published(fovea, tmp_path):
    source, config = tmp_path / "tiny.onnx", tmp_path / "r/tiny/config.pbtxt"
    write(source, *KINDS["a-number-an-image"][:3], beside=False)
    common = "build", source, "--repository", tmp_path / "r"
    code, *_ = fovea(*common, "--backend", "onnxruntime")
    assert code == 0
    text = config.read_text()
    config.write_text(text.replace(f"dims: {SIDE}", f"dims: {SIDE + 1}"))
    code, _, stderr = fovea(*common, "--backend", "openvino")
    assert code == 1
    assert str(config) in stderr
    assert [path.name for path in (tmp_path / "r").iterdir()] == ["tiny"]
    assert [path.name for path in config.parent.iterdir() if path.is_dir()] == ["1"]
    config.unlink()
    code, *_ = fovea(*common, "--backend", "openvino")
    assert code == 0
    assert config.exists()
