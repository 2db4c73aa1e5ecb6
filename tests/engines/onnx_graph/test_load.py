"""Loading: what is read, and what is refused."""

import os

import onnx
import pytest
from onnx import helper
from tests.engines.tiny import METADATA, save

from fovea_engines.onnx_graph.load import load
from fovea_engines.onnx_graph.tensors import read_metadata
from fovea_preprocess.errors import InvalidModel, NotFound

IMAGE = ("images", [1, 3, 8, 8])


def relu(source: str = "images") -> onnx.NodeProto:
    return helper.make_node("Relu", [source], ["out"])


def test_every_truncation_is_refused(tiny_model, tmp_path):
    data = tiny_model.read_bytes()
    for length in [0, *(2**n for n in range(len(data).bit_length())), len(data) - 1]:
        (tmp_path / "cut.onnx").write_bytes(data[:length])
        with pytest.raises(InvalidModel, match=r"cut\.onnx"):
            load(tmp_path / "cut.onnx")


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "is empty"),
        (b"PK\x03\x04" + bytes(100), "zip archive"),
        (b"\x89PNG\r\n\x1a\n" + bytes(100), "not an ONNX model"),
        (b"{}", "not a"),
        (bytes(1000), "not a"),
    ],
)
def test_what_is_not_onnx_is_refused(tmp_path, data, says):
    (tmp_path / "model.onnx").write_bytes(data)
    with pytest.raises(InvalidModel, match=says):
        load(tmp_path / "model.onnx")
    if data:
        (tmp_path / "model.pt").write_bytes(data)
        with pytest.raises(InvalidModel, match=r"model\.pt"):
            load(tmp_path / "model.pt")


def test_what_is_no_valid_file_is_refused(tmp_path):
    with pytest.raises(InvalidModel):
        load(tmp_path)
    with pytest.raises(NotFound):
        load(tmp_path / "absent.onnx")
    path = save(tmp_path / "m.onnx", [relu("nothing")], [IMAGE], [("out", [1, 3, 8, 8])])
    with pytest.raises(InvalidModel):
        load(path)


def test_external_data_is_read_and_counts(tiny_model, tmp_path):
    path = tmp_path / "external.onnx"
    onnx.save(
        onnx.load(tiny_model), path, save_as_external_data=True, location="w.bin", size_threshold=0
    )
    first = load(path)
    assert len(first.proto.graph.initializer) == len(load(tiny_model).proto.graph.initializer)
    weights = bytearray((tmp_path / "w.bin").read_bytes())
    weights[100] ^= 1
    (tmp_path / "w.bin").write_bytes(weights)
    assert load(path).sha256 != first.sha256
    (tmp_path / "w.bin").unlink()
    with pytest.raises(InvalidModel):
        load(path)


@pytest.mark.parametrize(
    ("folder", "store"),
    [
        ("hub/snapshots/abc/onnx", "hub/blobs"),
        ("project/models", "project/.dvc/cache/files/md5/4f"),
        ("flat", "flat/weights"),
        ("elsewhere", "private"),
        ("hard", None),
    ],
)
def test_weights_behind_links_are_those_of_the_files(tiny_model, tmp_path, folder, store):
    place = tmp_path / folder
    place.mkdir(parents=True)
    external = {"save_as_external_data": True, "location": "w.bin", "size_threshold": 0}
    onnx.save(onnx.load(tiny_model), place / "m.onnx", **external)
    expected = load(place / "m.onnx").sha256
    for number, name in enumerate(("m.onnx", "w.bin")):
        if store is None:
            (tmp_path / name).hardlink_to(place / name)
            continue
        kept = tmp_path / store / f"4f2a{number}"
        kept.parent.mkdir(parents=True, exist_ok=True)
        (place / name).rename(kept)
        (place / name).symlink_to(os.path.relpath(kept, place))
    if store == "private":
        with pytest.raises(InvalidModel, match="4f2a1"):
            load(place / "m.onnx")
    else:
        assert load(place / "m.onnx").sha256 == expected


@pytest.mark.parametrize(
    ("location", "length", "said"),
    [
        ("../w.bin", 4, "not in its folder"),
        ("/etc/passwd", 4, "not in its folder"),
        ("", 4, "not in its folder"),
        ("w.bin", 4, "is missing"),
        ("m.onnx", 10**6, "too short"),
        ("m.onnx", "many", "cannot be read"),
    ],
)
def test_external_data_that_is_not_there(tiny_model, tmp_path, location, length, said):
    model = onnx.load(tiny_model)
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.ClearField("float_data")
    tensor.data_location = tensor.EXTERNAL
    for key, value in (("location", location), ("length", length)):
        tensor.external_data.add(key=key, value=str(value))
    (tmp_path / "in").mkdir()
    (tmp_path / "w.bin").write_bytes(bytes(100))
    (tmp_path / "in" / "m.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(InvalidModel, match=said):
        load(tmp_path / "in" / "m.onnx")


def test_metadata_of_real_models_is_read_without_onnx(shared):
    for path in sorted((shared / "models").glob("*.onnx")):
        expected = {e.key: e.value for e in onnx.load(path).metadata_props}
        assert read_metadata(path) == expected


def test_metadata_of_a_cut_file_is_refused(tiny_model, tmp_path):
    data = tiny_model.read_bytes()
    assert read_metadata(tiny_model) == METADATA
    for length in range(1, len(data), 997):
        (tmp_path / "cut.onnx").write_bytes(data[:length])
        try:  # a cut between two fields cannot be seen; anything else must be refused
            read_metadata(tmp_path / "cut.onnx")
        except InvalidModel:
            continue
