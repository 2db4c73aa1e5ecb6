"""A detector that takes vectors of texts, as YOLO-World and YOLOE are exported with `txt_feats`."""

import cv2
import numpy as np
import onnxruntime
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from onnx import TensorProto, helper
from onnx import save as save_onnx
from tests.built import build
from tests.e2e.conftest import images
from tests.e2e.two_towers import NUMBERS, text_vectors, two_towers
from tests.engines.tiny import constant
from tests.serving import start_server

from fovea_client import Client, ServerError
from fovea_engines.build.plan import BuildPlan
from fovea_preprocess.errors import InvalidOption, UnsupportedModel

pytestmark = pytest.mark.slow

SIDE, STRIDES = 128, (8, 16, 32)
NAMES = ("a red cat", "a green dog", "7")
OTHERS = ("red", "a photo of 7")


def network(path, texts="texts", seed=11):
    """Write a detector of random weights: scores compare the features of a cell with each text."""
    random, node = np.random.default_rng(seed), helper.make_node
    nodes, weights, parts, grid = [], [], [], []
    for stride in STRIDES:
        side = SIDE // stride
        kernel = random.normal(0, 8 / stride, (NUMBERS, 3, stride, stride)).astype(np.float32)
        weights += [constant(f"w{stride}", kernel), constant(f"s{stride}", [1, NUMBERS, side**2])]
        level = ["images", f"w{stride}"], [f"c{stride}"]
        nodes.append(node("Conv", *level, strides=[stride, stride]))
        nodes.append(node("Reshape", [f"c{stride}", f"s{stride}"], [f"f{stride}"]))
        parts.append(f"f{stride}")
        row, column = np.divmod(np.arange(side**2), side)
        wide, high = random.uniform(1, 6, (2, side**2)) * stride
        grid.append(np.stack([(column + 0.5) * stride, (row + 0.5) * stride, wide, high]))
    boxes = np.concatenate(grid, axis=1)[None].astype(np.float32)
    weights += [constant("grid", boxes), constant("bias", np.float32(10))]
    nodes += [
        node("Concat", parts, ["features"], axis=2),
        node("MatMul", ["txt_feats", "features"], ["cosines"]),
        node("Sub", ["cosines", "bias"], ["logits"]),
        node("Sigmoid", ["logits"], ["scores"]),
        node("Concat", ["grid", "scores"], ["output0"], axis=1),
    ]
    inputs = [("images", [1, 3, SIDE, SIDE]), ("txt_feats", [1, texts, NUMBERS])]
    outputs = [("output0", [1, "columns", boxes.shape[2]])]
    ends = (
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in some]
        for some in (inputs, outputs)
    )
    graph = helper.make_graph(nodes, "prompts", *ends, weights)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    names = {str(at): name for at, name in enumerate(NAMES)}
    helper.set_model_props(made, {"task": "detect", "names": str(names)})
    save_onnx(made, path)
    return path


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """The detector, and two towers whose half of texts it takes."""
    folder = tmp_path_factory.mktemp("prompts")
    network(folder / "world.onnx")
    two_towers(folder / "towers", halves=True)
    given = {"text": folder / "towers" / "text.onnx"}
    build(BuildPlan(folder / "world.onnx", "world", folder / "r", "openvino", **given))
    return folder


@pytest.fixture(scope="module")
def server(place, tmp_path_factory):
    running = start_server(place / "r", tmp_path_factory.mktemp("log"))
    yield running
    assert running.stop() == 0


@pytest.fixture(scope="module")
def image():
    return np.random.default_rng(2).integers(0, 256, (SIDE, SIDE, 3)).astype(np.uint8)


@pytest.fixture(scope="module")
def sent(image):
    return cv2.imencode(".png", image[..., ::-1])[1].tobytes()


def by_loop(path, image, texts, least):
    """Each cell's best text and box, before suppression, written plainly."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    row = image.transpose(2, 0, 1)[None].astype(np.float32) / 255
    given = {"images": row, "txt_feats": text_vectors(*texts)[None].astype(np.float32)}
    [output] = session.run(None, given)
    for column in output[0].T.tolist():
        cx, cy, wide, high = column[:4]
        class_id = max(range(len(texts)), key=lambda at: column[4 + at])
        if column[4 + class_id] >= least:
            x1, y1 = max(cx - wide / 2, 0), max(cy - high / 2, 0)
            x2, y2 = min(cx + wide / 2, SIDE), min(cy + high / 2, SIDE)
            yield texts[class_id], round(column[4 + class_id], 3), (x1, y1, x2, y2)


def check(found, wanted):
    wanted = list(wanted)
    assert len(found) == len(wanted) > 3
    assert len({each.class_name for each in found}) > 1
    left = sorted(wanted, key=lambda each: -each[1])
    for each in found:
        box = (each.box.x1, each.box.y1, each.box.x2, each.box.y2)
        same = [
            one
            for one in left
            if one[0] == each.class_name and one[2] == pytest.approx(box, abs=0.1)
        ]
        assert same, each
        assert min(abs(one[1] - each.score) for one in same) < 2e-3


OPTIONS = {"conf": 0.5, "iou": 1.0, "max_det": 400}


@pytest.mark.parametrize("labels", [None, OTHERS, ("red", *NAMES, "dog")])
def test_a_request_says_what_is_found(server, place, image, sent, labels):
    wanted = by_loop(place / "world.onnx", image, labels or NAMES, OPTIONS["conf"])
    with Client(server.url) as client:
        found = client.predict("world", sent, labels=labels, **OPTIONS)
    assert found.task == "detect"
    check(found.detections, wanted)


def test_classes_are_those_of_the_request(server, sent):
    with Client(server.url) as client:
        found = client.predict("world", sent, labels=OTHERS, **OPTIONS).detections
        one = client.predict("world", sent, labels=OTHERS, classes=["red"], **OPTIONS).detections
        tiled = client.predict("world", sent, labels=OTHERS, tile="2x1", **OPTIONS).detections
        assert [each for each in found if each.class_name == "red"] == list(one)
        assert {each.class_name for each in tiled} <= set(OTHERS)
        with pytest.raises(ServerError, match="'cat'"):
            client.predict("world", sent, labels=OTHERS, classes=["cat"])
        with pytest.raises(ServerError, match="1 letters"):
            client.predict("world", sent, labels=[" "])


def test_v2_and_the_command(server, place, sent, tmp_path, fovea):
    with Client(server.url) as client:
        found = client.predict("world", sent, labels=OTHERS, conf=0.5).detections
    said = {"labels": ",".join(OTHERS), "conf": 0.5}
    for protocol, port in ((http_client, server.port), (grpc_client, server.grpc_port)):
        asked = images(protocol, sent, name="images")
        with protocol.InferenceServerClient(f"127.0.0.1:{port}") as client:
            answer = client.infer("world", asked, parameters=said)
        scores, names = (answer.as_numpy(each).ravel() for each in ("scores", "class_names"))
        assert scores == pytest.approx([each.score for each in found], abs=1e-3)
        assert [each.decode() for each in names] == [each.class_name for each in found]
    (tmp_path / "a.png").write_bytes(sent)
    command = ("predict", "world", "a.png", "--texts", "red,a photo of 7", "--conf", "0.5")
    code, out, err = fovea(*command, "--repository", place / "r")
    assert code == 0, err
    assert found[0].class_name in out
    assert server.metric("fovea_texts_total", 'model="world"')


def test_builds_that_lack_something(place, tmp_path):
    source, text = place / "world.onnx", place / "towers" / "text.onnx"
    fixed = network(tmp_path / "fixed.onnx", texts=3)
    given = {"repository": tmp_path / "r", "backend": "onnxruntime", "name": "w"}
    tokenizer = text.with_name("tokenizer.json")
    for plan, error, says in (
        (BuildPlan(source, tokenizer=tokenizer, **given), InvalidOption, "with --text"),
        (BuildPlan(fixed, text=text, **given), UnsupportedModel, "exactly 3 texts"),
        (BuildPlan(source, text=text, rect=True, **given), InvalidOption, "leave out --rect"),
        (BuildPlan(source, **given), UnsupportedModel, "txt_feats"),
    ):
        with pytest.raises(error, match=says):
            build(plan)
