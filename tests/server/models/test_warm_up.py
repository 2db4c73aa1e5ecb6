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


@pytest.mark.parametrize(
    ("sample", "told"),
    [
        ('input_data_file: "places"', ""),
        ("zero_data: true", ""),
        ('input_data_file: "beyond"', "out of data bounds"),
        ("random_data: true", "out of data bounds"),
        ('input_data_file: "nowhere"', "nowhere"),
        ('input_data_file: "short"', "short has 3 bytes"),
        ('input_data_file: "../config.pbtxt"', "../config.pbtxt"),
        ("zero_data: true dims: [ -1 ]", "dims"),
    ],
)
def test_a_sample_is_run_before_the_model_is_ready(tmp_path, sample, told):
    folder = looker(tmp_path, sample)
    for name, places in (("places", [1, 9, 3, 0]), ("beyond", [1, 10, 3, 0])):
        (folder / "warmup" / name).write_bytes(np.array(places, np.int64).tobytes())
    (folder / "warmup" / "short").write_bytes(b"abc")
    with serving(tmp_path) as registry:
        assert registry.ready == (not told)
        assert told in registry.reason
        if registry.ready:
            assert registry.find("looker").statistics.execution_count == 0, "nobody has asked yet"


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
