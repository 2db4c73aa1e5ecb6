"""Loading and normalising: what is read, what is refused and with which words."""

import os

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper
from tests.engines.real import run
from tests.engines.tiny import METADATA, constant, save, tiny_detector

from fovea_engines.onnx_graph.load import load
from fovea_engines.onnx_graph.normalise import normalise
from fovea_engines.onnx_graph.tensors import graph_inputs, graph_outputs, metadata_of, read_metadata
from fovea_preprocess.errors import InvalidModel, InvalidOption, NotFound, UnsupportedModel

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
        (b"PK\x03\x04" + bytes(100), r"zip archive: .*`yolo export model=model\.pt format=onnx`"),
        (b"\x89PNG\r\n\x1a\n" + bytes(100), "not a whole ONNX model"),
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
        with pytest.raises(InvalidModel, match=r"model\.pt is PyTorch's"):
            load(tmp_path / "model.pt")


def test_a_folder_and_an_absent_file_are_refused(tmp_path):
    with pytest.raises(InvalidModel, match="is a folder"):
        load(tmp_path)
    with pytest.raises(NotFound):
        load(tmp_path / "absent.onnx")


def test_a_graph_that_uses_what_is_not_there_is_refused(tmp_path):
    path = save(tmp_path / "m.onnx", [relu("nothing")], [IMAGE], [("out", [1, 3, 8, 8])])
    with pytest.raises(InvalidModel, match="not valid ONNX"):
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
    with pytest.raises(InvalidModel, match="external data"):
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
        with pytest.raises(InvalidModel, match=r"w\.bin is a link to .*4f2a1.*: replace it by"):
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


def test_size_is_fixed_and_the_batch_stays_dynamic(tmp_path):
    path = tiny_detector(tmp_path / "m.onnx", size=("h", "w"), opset=13)
    model = normalise(load(path).proto, (64, 96))
    assert graph_inputs(model)[0].shape == (-1, 3, 64, 96)
    assert graph_outputs(model)[0].shape == (-1, 7, 126)
    assert model.opset_import[0].version >= 19
    assert metadata_of(model) == METADATA
    assert not model.graph.value_info
    onnxruntime.InferenceSession(model.SerializeToString())


@pytest.mark.parametrize(
    ("metadata", "size"), [({}, 640), ({"imgsz": "[96, 96]"}, 96), ({"imgsz": "32"}, 32)]
)
def test_a_size_is_found_where_none_is_given(tmp_path, metadata, size):
    path = tiny_detector(tmp_path / "m.onnx", size=("h", "w"), metadata=metadata)
    assert graph_inputs(normalise(load(path).proto))[0].shape == (-1, 3, size, size)


def test_a_size_the_model_cannot_take_is_refused(tiny_model, tmp_path):
    with pytest.raises(InvalidOption, match="fixed at 64x64"):
        normalise(load(tiny_model).proto, (96, 96))
    path = tiny_detector(tmp_path / "m.onnx", size=("h", "w"))
    with pytest.raises(InvalidOption, match="multiples of 32"):
        normalise(load(path).proto, (100, 100))


def test_several_inputs_are_named(tmp_path):
    add = helper.make_node("Add", ["images", "mask"], ["out"])
    path = save(tmp_path / "m.onnx", [add], [IMAGE, ("mask", [1, 3, 8, 8])], [("out", IMAGE[1])])
    with pytest.raises(UnsupportedModel, match=r"2 inputs .*'mask'"):
        normalise(load(path).proto)


@pytest.mark.parametrize("shape", [[1, 16], [1, 4, 8, 8], [4, 8, 8], [1, 2, 8, 8]])
def test_an_input_that_is_no_image_is_refused(tmp_path, shape):
    path = save(tmp_path / "m.onnx", [relu()], [("images", shape)], [("out", shape)])
    with pytest.raises(UnsupportedModel, match="images"):
        normalise(load(path).proto)


@pytest.mark.parametrize(("opset", "mode"), [(9, "linear"), (9, "nearest"), (10, "linear")])
def test_old_resizing_keeps_its_places(tmp_path, opset, mode):
    operator = "Upsample" if opset == 9 else "Resize"
    nodes = [helper.make_node(operator, ["images", "scales"], ["out"], mode=mode)]
    scales = constant("scales", np.float32([1, 1, 1.5, 2]))
    shapes = [IMAGE], [("out", [1, 3, 12, 16])]
    path = save(tmp_path / "m.onnx", nodes, *shapes, [scales], opset=opset)
    row = np.random.default_rng(0).normal(size=IMAGE[1]).astype(np.float32)
    [want], [have] = (run(model, row) for model in (onnx.load(path), normalise(load(path).proto)))
    np.testing.assert_allclose(have, want, atol=1e-6)


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
