"""Rules of infer that the recordings do not show, on the recorded models."""

import json
import mmap
import struct
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from tests.contract.http_client import binary, error, infer, ones, parts, tensor
from tests.contract.replay import send

pytestmark = pytest.mark.slow

SIMPLE = {"inputs": [ones("INPUT0"), ones("INPUT1")]}


@pytest.fixture
def port(golden_server) -> int:
    return golden_server.port


@pytest.mark.parametrize(
    ("datatype", "dtype"),
    [
        ("BOOL", np.bool_),
        ("UINT8", np.uint8),
        ("UINT64", np.uint64),
        ("INT8", np.int8),
        ("INT64", np.int64),
        ("FP16", np.float16),
        ("BF16", ml_dtypes.bfloat16),
        ("FP32", np.float32),
        ("FP64", np.float64),
    ],
)
def test_every_number_goes_there_and_back_in_binary(port, datatype, dtype):
    sent = np.array([[0, 1, 0], [1, 1, 0]], dtype).tobytes()
    document = {
        "inputs": [binary("INPUT0", [2, 3], datatype, len(sent))],
        "parameters": {"binary_data_output": True},
        "id": "né",
    }
    described, data = parts(infer(port, f"identity_{datatype.lower()}", document, sent))
    assert data == sent
    assert described["id"] == "né"
    output = described["outputs"][0]
    assert (output["datatype"], output["shape"]) == (datatype, [2, 3])
    assert output["parameters"] == {"binary_data_size": len(sent)}


def test_strings_mixed_with_json(port):
    sent = b"".join(struct.pack("<I", len(text)) + text for text in (b"1", b"22") * 8)
    document = {
        "inputs": [
            binary("INPUT0", [1, 16], "BYTES", len(sent)),
            tensor("INPUT1", [1, 16], "BYTES", data=[["1"] * 8, ["2"] * 8]),
        ],
        "outputs": [
            {"name": "OUTPUT1", "parameters": {"binary_data": True}},
            {"name": "OUTPUT0"},
        ],
    }
    described, data = parts(infer(port, "simple_string", document, sent))
    first, second = described["outputs"]
    assert first["name"] == "OUTPUT0", "in the order of the configuration"
    assert first["data"][:2] == ["2", "23"]
    assert struct.unpack_from("<I", data)[0] == 1
    assert second["parameters"]["binary_data_size"] == len(data)


def test_a_tensor_without_elements(port):
    document = {
        "inputs": [tensor("INPUT0", [0, 4], "FP32", data=[])],
        "parameters": {"binary_data_output": True},
    }
    described, data = parts(infer(port, "identity_fp32", document))
    assert described["outputs"][0]["shape"] == [0, 4]
    assert data == b""


def test_nan_is_taken(port):
    body = b'{"inputs":[{"name":"INPUT0","shape":[1,2],"datatype":"FP32","data":[NaN,-Infinity]}]}'
    answer = infer(port, "identity_fp32", body)
    assert b'"data":[NaN,-Infinity]' in answer.body


def test_long_tensors_travel_as_json(port):
    sent = np.linspace(0, 1, 200_000, dtype=np.float32).reshape(4, 50_000)
    document = {"id": "long", "inputs": [tensor("INPUT0", [4, 50_000], "FP32", data=sent.tolist())]}
    answer = infer(port, "identity_fp32", document)
    described, rest = parts(answer)
    assert rest == b""
    assert described["id"] == "long"
    assert np.array_equal(np.array(described["outputs"][0]["data"], np.float32), sent.ravel())
    generated = send(
        port,
        "POST",
        "/v2/models/identity_int32/generate",
        body=json.dumps({"INPUT0": list(range(100_000))}).encode(),
    )
    assert json.loads(generated.body)["OUTPUT0"] == list(range(100_000))


@pytest.mark.parametrize(
    ("model", "body", "shape"),
    [
        ("identity_fp32", bytes(8), None),
        ("onnx_zero_1_float32", bytes(64), [1, 16]),
        ("onnx_zero_1_object_1_element", b"a string", [1, 1]),
    ],
)
def test_a_body_that_is_one_tensor(port, model, body, shape):
    headers = {"Inference-Header-Content-Length": "0"}
    answer = send(port, "POST", f"/v2/models/{model}/infer", headers, body)
    if shape is None:
        expected = "can not be deduced because there are more than one variable-sized dimension"
        assert expected in error(answer)[1]
        return
    described, data = parts(answer)
    assert described["outputs"][0]["shape"] == shape
    assert data.endswith(body)


def test_classes_have_their_labels(port):
    sent = np.resize(np.arange(1000, dtype=np.float32), 3 * 224 * 224).tobytes()
    document = {
        "inputs": [binary("data_0", [3, 224, 224], "FP32", len(sent))],
        "outputs": [{"name": "fc6_1", "parameters": {"classification": 3}}],
    }
    described, _ = parts(infer(port, "densenet_onnx", document, sent))
    output = described["outputs"][0]
    assert (output["datatype"], output["shape"][-1]) == ("BYTES", 3)
    assert all(text.count(":") == 2 for text in output["data"])


def test_tensors_in_shared_memory(port):
    path = Path("/dev/shm/fovea_contract")
    sent = np.arange(16, dtype=np.int32)
    path.write_bytes(sent.tobytes() + bytes(mmap.PAGESIZE))
    region = "/v2/systemsharedmemory/region/tensors"
    try:
        body = json.dumps({"key": "/fovea_contract", "byte_size": 256}).encode()
        assert send(port, "POST", f"{region}/register", body=body).status == 200
        status = json.loads(send(port, "GET", f"{region}/status").body)
        assert status == [
            {"name": "tensors", "key": "/fovea_contract", "offset": 0, "byte_size": 256}
        ]
        here = {"shared_memory_region": "tensors", "shared_memory_byte_size": 64}
        document = {
            "inputs": [tensor("INPUT0", [1, 16], "INT32", parameters=here), ones("INPUT1")],
            "outputs": [{"name": "OUTPUT0", "parameters": {**here, "shared_memory_offset": 64}}],
        }
        described, _ = parts(infer(port, "simple", document))
        assert described["outputs"] == [{"name": "OUTPUT0", "datatype": "INT32", "shape": [1, 16]}]
        assert np.array_equal(np.frombuffer(path.read_bytes()[64:128], np.int32), sent + 1)
    finally:
        assert send(port, "POST", f"{region}/unregister").status == 200
        path.unlink()
