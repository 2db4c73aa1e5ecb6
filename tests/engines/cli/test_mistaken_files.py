"""`fovea build` of files that are not what their owner takes them for: the reason, and the cure."""

import json
import re
import shlex

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from tests.engines.tiny import METADATA, constant, tiny_detector

from fovea_engines.engine import Engine
from fovea_engines.repository.card import EngineCard
from fovea_preprocess.errors import InvalidModel

pytestmark = pytest.mark.slow

POINTER = b"""version https://git-lfs.github.com/spec/v1
oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393
size 12345
"""
PAGES = [
    b"<!DOCTYPE html>\n<html><head><title>Sign in</title></head></html>",
    b"\xef\xbb\xbf\n<html lang='en'>",
]


def said(err):
    return " ".join(err.split())


@pytest.mark.parametrize(
    ("content", "says"),
    [(POINTER, "a pointer of Git LFS, and not the model: fetch it with `git lfs pull`")]
    + [(page, "a web page, and not the model") for page in PAGES],
)
def test_what_lies_in_the_place_of_a_model_is_told(fovea, tmp_path, content, says):
    (tmp_path / "m.onnx").write_bytes(content)
    code, _, err = fovea("build", "m.onnx")
    assert code == 1
    assert f"m.onnx is {says}" in said(err)
    folder = tmp_path / "r" / "m" / "1"
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(content)
    with pytest.raises(InvalidModel, match=re.escape(says)):
        Engine.open(folder)


@pytest.mark.parametrize(("rows", "options"), [(4, ()), (1, ("--max-batch", 3))])
def test_the_cure_of_a_fixed_batch_works(fovea, tmp_path, rows, options):
    tiny_detector(tmp_path / "my file.onnx", batch=rows)
    code, _, err = fovea("build", "my file.onnx", "--name", "m", *options)
    assert code in (1, 2)
    [command] = re.findall(r"`(fovea edit [^`]*)`", said(err))
    assert fovea(*shlex.split(command)[1:])[0] == 0
    [made] = tmp_path.glob("*-any-batch.onnx")
    build = ("build", made, "--name", "m", "--backend", "onnxruntime", "--max-batch", 3)
    code, _, err = fovea(*build)
    assert code == 0, err
    assert EngineCard.read(tmp_path / "repository" / "m" / "1" / "card.json").max_batch == 3


def test_a_name_with_spaces_gets_a_name_that_can_be_one(fovea, tmp_path):
    tiny_detector(tmp_path / "my model (1).onnx")
    code, _, err = fovea("build", "my model (1).onnx")
    assert code == 2
    assert "give it another with --name my_model_1" in said(err)


def quantised(path, step):
    """Write a detector whose boxes and scores are rounded to steps, as one output."""
    model = onnx.load(tiny_detector(path, metadata={}))
    [last] = [node for node in model.graph.node if "output0" in node.output]
    last.output[0] = "float"
    weights = [constant("step", np.float32(step)), constant("zero", np.uint8(0))]
    model.graph.initializer.extend(weights)
    model.graph.node.extend(
        [
            helper.make_node("QuantizeLinear", ["float", "step", "zero"], ["bytes"]),
            helper.make_node("DequantizeLinear", ["bytes", "step", "zero"], ["back"]),
            helper.make_node("Identity", ["back"], ["output0"]),
        ]
    )
    onnx.save(model, path)
    return path


def test_a_detector_without_scores_is_refused(fovea, tmp_path):
    path = quantised(tmp_path / "m.onnx", 64 / 23)
    code, _, err = fovea("build", path, "--backend", "onnxruntime")
    assert code == 1
    assert "quantised to nothing: output output0 has steps of 2.8" in said(err)
    assert "fovea build --precision int8" in said(err)
    code, _, err = fovea("build", path, "--backend", "onnxruntime", "--head", "tensors")
    assert code == 0, err


@pytest.mark.parametrize(
    ("names", "labels", "says"),
    [
        # Of class 1 nothing is known but its number.
        ({0: "cat", 2: "bus"}, ("cat", "1", "bus"), ""),
        ({0: "cat", 2: "bus", 7: "car"}, None, "names a class 7, where the model has 0 to 2"),
        (["cat", "dog"], ("cat", "dog"), "--labels FILE with a line for each of 3 says them"),
        (
            ["cat", "dog", "car", "bus"],
            ("cat", "dog", "car", "bus"),
            "--labels FILE with a line for each of 3 says them",
        ),
    ],
)
def test_names_with_gaps_and_of_another_number(fovea, tmp_path, names, labels, says):
    path = tiny_detector(tmp_path / "m.onnx", metadata=METADATA | {"names": str(names)})
    code, out, err = fovea("build", path, "--backend", "onnxruntime")
    assert code == 0, err
    assert says in " ".join((out.replace("│", " ") + err).split())
    card = EngineCard.read(tmp_path / "repository" / "m" / "1" / "card.json")
    assert card.labels == labels
    if says:
        (tmp_path / "own.txt").write_text("cat\ndog\nbus\n")
        code, out, _ = fovea(
            "build", path, "--backend", "onnxruntime", "--labels", "own.txt", "--json"
        )
        assert code == 0
        assert json.loads(out)["card"]["labels"] == ["cat", "dog", "bus"]


def test_a_detector_of_grey_images_finds_what_it_finds_in_grey(fovea, tmp_path):
    colour = onnx.load(tiny_detector(tmp_path / "colour.onnx", batch=1))
    model = onnx.load(tmp_path / "colour.onnx")
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 1
    shares = np.array([0.299, 0.587, 0.114], np.float32)
    for network, one in ((model, True), (colour, False)):
        for tensor in network.graph.initializer:
            if tensor.name in ("w8", "w16", "w32"):
                kernel = numpy_helper.to_array(tensor)[:, :1]
                kernel = kernel if one else kernel * shares[None, :, None, None]
                tensor.CopyFrom(numpy_helper.from_array(kernel.copy(), tensor.name))
    onnx.save(model, tmp_path / "grey.onnx")
    onnx.save(colour, tmp_path / "colour.onnx")
    pixels = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    found = []
    for name in ("grey", "colour"):
        code, _, err = fovea("build", f"{name}.onnx", "--backend", "onnxruntime")
        assert code == 0, err
        with Engine.open(tmp_path / "repository" / name / "1") as engine:
            assert engine.card.family == "yolov8"
            found.append(engine.detect(pixels))
    assert len(found[0]) == len(found[1]) > 0
    np.testing.assert_allclose(found[0].boxes, found[1].boxes, atol=1e-2)
    np.testing.assert_allclose(found[0].scores, found[1].scores, atol=1e-4)
