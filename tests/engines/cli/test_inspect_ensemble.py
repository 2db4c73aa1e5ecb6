"""`fovea inspect` of models that are made of others."""

import json

import pytest

pytestmark = pytest.mark.real

CONFIG = """
platform: "ensemble"
max_batch_size: 8
input { name: "IMAGE" data_type: TYPE_UINT8 dims: [ -1 ] }
output { name: "BOXES" data_type: TYPE_FP32 dims: [ 300, 4 ] }
ensemble_scheduling {
  step { model_name: "decode" model_version: -1
    input_map { key: "bytes" value: "IMAGE" } output_map { key: "pixels" value: "image" } }
  step { model_name: "detect" model_version: 2
    input_map { key: "images" value: "image" } output_map { key: "boxes" value: "BOXES" } }
}
"""


def test_the_steps_are_shown(fovea, built_repository, tmp_path):
    folder = tmp_path / "r" / "both"
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(CONFIG)
    for path in (folder, folder / "1"):
        out = fovea("inspect", path)[1]
        assert "decode: bytes from IMAGE, image from pixels" in out
        assert "detect 2: images from image, BOXES from boxes" in out
        assert "IMAGE uint8 ?x?" in out
    [entry] = json.loads(fovea("inspect", folder, "--json")[1])
    assert entry["ensemble"]["steps"][1] == {
        "model": "detect",
        "version": 2,
        "inputs": {"images": "image"},
        "outputs": {"boxes": "BOXES"},
    }
    (tmp_path / "r" / "tiny").symlink_to(built_repository / "tiny")
    out = fovea("inspect", tmp_path / "r")[1]
    assert "decode, detect" in out
    assert "cannot be opened" not in out


def test_no_word_of_the_table_is_broken_in_80_columns(fovea, shared):
    out = fovea("inspect", shared / "data" / "triton" / "models")[1]
    assert max(map(len, out.splitlines())) <= 80
    for word in ("onnxruntime", "precision", "agreement", "?x3x640x640"):
        assert word in out.split()
