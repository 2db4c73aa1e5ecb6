"""Samples that a configuration asks to be run before a model is ready; and labels."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.server.registries import ADDER_CONFIG, adder, serving

from fovea_server.tensors.wire import encode_strings


def looker(repository: Path, sample: str) -> Path:
    """A model that looks places up in a list of ten: any other place is a fault of the engine."""
    graph = helper.make_graph(
        [helper.make_node("Gather", ["places", "X"], ["Y"])],
        "looker",
        [helper.make_tensor_value_info("X", TensorProto.INT64, ["N", 2])],
        [helper.make_tensor_value_info("Y", TensorProto.FLOAT, ["N", 2])],
        [numpy_helper.from_array(np.arange(10, dtype=np.float32), "places")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    folder = repository / "looker"
    (folder / "1").mkdir(parents=True)
    (folder / "warmup").mkdir()
    onnx.save(model, folder / "1" / "model.onnx")
    data = f"data_type: TYPE_INT64 dims: [ 2 ] {sample}"
    (folder / "config.pbtxt").write_text(
        f'model_warmup {{ name: "sample" batch_size: 2 inputs {{ key: "X" value {{ {data} }} }} }}'
    )
    return folder


@pytest.mark.parametrize("places", [[1, 9, 3, 0], [1, 10, 3, 0]])
def test_a_sample_from_a_file_is_run(tmp_path, places):
    folder = looker(tmp_path, 'input_data_file: "places"')
    (folder / "warmup" / "places").write_bytes(np.array(places, np.int64).tobytes())
    with serving(tmp_path) as registry:
        assert registry.ready == (max(places) < 10)
        if not registry.ready:
            assert "out of data bounds" in registry.reason


def test_zeros_are_run(tmp_path):
    looker(tmp_path, "zero_data: true")
    with serving(tmp_path) as registry:
        assert registry.reason == ""
        assert registry.find("looker").statistics.execution_count == 0, "nobody has asked yet"


def test_random_numbers_are_run(tmp_path):
    looker(tmp_path, "random_data: true")
    with serving(tmp_path) as registry:
        assert "out of data bounds" in registry.reason


@pytest.mark.parametrize(
    ("sample", "told"),
    [
        ('input_data_file: "nowhere"', "nowhere cannot be read (No such file or directory)"),
        ('input_data_file: "short"', "short has 3 bytes, which are not [2, 2] of int64"),
        ('input_data_file: "../config.pbtxt"', "leads out of"),
        ("zero_data: true dims: [ -1 ]", "dims must all be fixed"),
    ],
)
def test_a_sample_that_cannot_be_made_is_told(tmp_path, sample, told):
    folder = looker(tmp_path, sample)
    (folder / "warmup" / "short").write_bytes(b"abc")
    with serving(tmp_path) as registry:
        assert told in registry.reason


@pytest.mark.parametrize("data", ["zero_data: true", 'input_data_file: "words"'])
def test_strings_can_be_samples(shared, tmp_path, data):
    folder = tmp_path / "string_identity"
    (folder / "1").mkdir(parents=True)
    (folder / "warmup").mkdir()
    models = shared / "data" / "triton" / "models"
    (folder / "1/model.onnx").symlink_to(models / "string_identity" / "1" / "model.onnx")
    words = np.array([b"one", b"two"], object)
    (folder / "warmup" / "words").write_bytes(encode_strings(words))
    sample = f"value {{ data_type: TYPE_STRING dims: [ 2 ] {data} }}"
    (folder / "config.pbtxt").write_text(
        f'model_warmup {{ name: "s" inputs {{ key: "INPUT0" {sample} }} }}'
    )
    with serving(tmp_path, default_max_batch_size=0) as registry:
        assert registry.reason == ""


def test_outputs_have_the_labels_of_their_files(tmp_path):
    config = ADDER_CONFIG.replace('"Y"', '"Y" label_filename: "names.txt"')
    folder = adder(tmp_path, "plus", config=config)
    with serving(tmp_path) as registry:
        assert "labels of output 'Y': " in registry.reason
    (folder / "names.txt").write_text("cat\ndog\n")
    with serving(tmp_path) as registry:
        assert registry.find("plus").labels_of("Y") == ("cat", "dog")
        assert registry.find("plus").labels_of("Z") is None
