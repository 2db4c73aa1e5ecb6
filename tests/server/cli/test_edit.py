"""`fovea edit` as it is typed."""

import hashlib
import json

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper
from tests.engines.tiny import save, tiny_detector

pytestmark = pytest.mark.slow


@pytest.mark.real
def test_a_detector_is_cut_freed_and_normalised_at_once(fovea, shared, tmp_path):
    source = shared / "models" / "heads" / "tf-od.onnx"
    digest = hashlib.sha256(source.read_bytes()).digest()
    options = ("--output", "h_Concat27_0", "--output", "h_Transpose37_0", "--batch", "dynamic")
    names = ("--rename", "h_Concat27_0=boxes", "--meta", "task=detect", "--strip-metadata")
    code, out, err = fovea("edit", source, "--out", "raw.onnx", *options, *names)
    assert code == 0, err
    for text in (
        "input_tensor uint8 1x416x416x3",
        "input_tensor uint8 ?x416x416x3",
        "boxes float32 ?x3549x4",
        "nodes dropped",
        "batch: dynamic instead of 1",
        "rename: h_Concat27_0 is now boxes",
    ):
        assert text in out
    session = onnxruntime.InferenceSession(tmp_path / "raw.onnx")
    boxes = session.run(["boxes"], {"input_tensor": np.zeros((2, 416, 416, 3), np.uint8)})[0]
    assert boxes.shape == (2, 3549, 4)
    renamed = {"fovea_renamed": '{"boxes": "h_Concat27_0"}'}
    assert session.get_modelmeta().custom_metadata_map == {"task": "detect"} | renamed
    assert hashlib.sha256(source.read_bytes()).digest() == digest


def test_json_has_both_models_and_every_edit(fovea, tiny_model):
    edits = ("--normalize", "1/255", "--uint8", "--replace-op", "Sigmoid=Softsign")
    code, out, _ = fovea("edit", tiny_model, "--out", "m.onnx", *edits, "--json")
    assert code == 0
    report = json.loads(out)
    assert (report["source"], report["out"]) == (str(tiny_model), "m.onnx")
    assert report["before"]["inputs"][0] == {
        "name": "images",
        "dtype": "float32",
        "shape": [-1, 3, 64, 64],
    }
    assert report["after"]["inputs"][0]["dtype"] == "uint8"
    # Softsign goes below 0, and so is no probability.
    assert (report["before"]["head"], report["after"]["head"]) == ("yolov8", None)
    assert report["after"]["nodes"] == report["before"]["nodes"] + 2
    added, replaced = report["steps"]
    assert added["difference"] < 1e-4
    assert not added["expected"]
    assert replaced["difference"] > 0.1
    assert replaced["expected"]


def test_what_was_there_is_replaced_but_never_the_model(fovea, tiny_model, tmp_path):
    (tmp_path / "m.onnx").write_bytes(tiny_model.read_bytes())
    (tmp_path / "link.onnx").symlink_to("m.onnx")
    for out in ("m.onnx", "./m.onnx", "link.onnx"):
        code, _, err = fovea("edit", "m.onnx", "--out", out, "--strip-metadata")
        assert code == 2
        assert "is the model itself" in err
    assert (tmp_path / "m.onnx").read_bytes() == tiny_model.read_bytes()
    (tmp_path / "old.onnx").write_text("old")
    assert fovea("edit", "m.onnx", "--out", "old.onnx", "--strip-metadata")[0] == 0
    assert not onnx.load(tmp_path / "old.onnx").metadata_props


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        ((), 2, "nothing to edit"),
        (("--output", "c9"), 2, "'c9'"),
        (("--batch", "0"), 2, "1 to 9999"),
        (("--size", "big"), 2, "HEIGHTxWIDTH"),
        (("--size", "100"), 2, "32"),
        (("--size", "96"), 1, "(Mul)"),
        (("--normalise", "x"), 2, "SCALE"),
        (("--uint8",), 2, "--normalize"),
        (("--rename", "output0"), 2, "="),
        (("--rename", "a=b", "--rename", "a=c"), 2, "'a'"),
        (("--rename", "output0=images"), 2, "'images'"),
        (("--drop-normalise",), 1, "images"),
        (("--labels", "coco"), 2, "80"),
        (("--labels", "names.txt", "--meta", "names=['a']"), 2, "not both"),
        (("--meta", "names=cat, dog, bus"), 2, "class names"),
        (("--meta", "names=['cat', 'dog']"), 2, "2 labels"),
        (("--out", "absent/o.onnx", "--strip-metadata"), 1, "absent/o.onnx"),
    ],
)
def test_what_cannot_be_edited_is_refused(fovea, tiny_model, tmp_path, options, code, says):
    model = onnx.load(tiny_model)
    for number, node in enumerate(model.graph.node):
        node.name = f"{node.op_type}_{number}"
    onnx.save(model, tmp_path / "m.onnx")
    (tmp_path / "names.txt").write_text("a\nb\nc\n")
    found, out, err = fovea("edit", "m.onnx", "--out", "o.onnx", *options)
    assert (found, out) == (code, ""), err
    assert says in err
    assert err.splitlines()[-1].startswith("error: ")
    assert not (tmp_path / "o.onnx").exists()


@pytest.mark.real
def test_a_size_between_cells_is_refused_and_another_is_compared(fovea, shared):
    source = shared / "models" / "yolox_nano.onnx"
    code, _, err = fovea("edit", source, "--out", "o.onnx", "--size", "250x416")
    assert (code, "256x416" in err) == (2, True)
    code, out, err = fovea("edit", source, "--out", "o.onnx", "--size", "256x416", "--json")
    assert code == 0, err
    [step] = json.loads(out)["steps"]
    assert step["difference"] < 1e-3


def test_what_is_no_model_is_named(fovea, tmp_path):
    for content in (b"", b"not a model"):
        (tmp_path / "m.onnx").write_bytes(content)
        code, out, err = fovea("edit", "m.onnx", "--out", "o.onnx", "--strip-metadata")
        assert (code, out) == (1, "")
        assert err.startswith("error: m.onnx ")


def test_a_batch_is_freed_where_rows_are_not_mixed(fovea, tmp_path):
    nodes = [
        helper.make_node("ReduceMean", ["images"], ["mean"], "over_all", keepdims=1),
        helper.make_node("Sub", ["images", "mean"], ["out"], "sub"),
    ]
    image = ("images", [1, 3, 8, 8])
    save(tmp_path / "m.onnx", nodes, [image], [("out", image[1])])
    code, _, err = fovea("edit", "m.onnx", "--out", "o.onnx", "--batch", "dynamic")
    assert code == 1
    assert "node 'over_all' (ReduceMean)" in err
    assert not (tmp_path / "o.onnx").exists()
    tiny_detector(tmp_path / "m.onnx", batch=1)
    assert fovea("edit", "m.onnx", "--out", "free.onnx", "--batch", "dynamic")[0] == 0
    code, _, err = fovea("build", "free.onnx", "--max-batch", 4, "--backend", "onnxruntime")
    assert code == 0, err


@pytest.mark.parametrize("option", [("--labels", "names.txt"), ("--meta", 'names=["a", "b", "c"]')])
def test_names_are_written_into_a_file(fovea, tmp_path, tiny_model, option):
    (tmp_path / "names.txt").write_text("a\nb\nc\n")
    code, out, err = fovea("edit", tiny_model, "--out", "o.onnx", *option, "--json")
    assert code == 0, err
    after = json.loads(out)["after"]
    assert after["head"] == "yolov8"
    assert json.loads(after["metadata"]["names"]) == ["a", "b", "c"]
