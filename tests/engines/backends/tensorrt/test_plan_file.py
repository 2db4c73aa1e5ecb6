"""Engines made by others: what is read in front of a plan, and what is refused."""

import json
import os
import tracemalloc

import onnx
import pytest
from tests.engines.rtx import compile_graph, trt

from fovea_engines.backends.tensorrt.plan_file import read_plan_file
from fovea_engines.heads.metadata import image_size, labels_from_metadata, largest_stride
from fovea_preprocess.errors import InvalidModel, NotFound

# As trtexec --getPlanVersionOnly reads it: tag, serialization version, version of TensorRT.
PLAN = b"ftrt" + bytes(20) + bytes([10, 16, 1, 11]) + b"the rest of the plan"
HEADER = {
    "description": "Ultralytics YOLOv8n model trained on coco.yaml",
    "version": "8.3.0",
    "stride": 32,
    "task": "detect",
    "batch": 4,
    "imgsz": [480, 640],
    "names": {"0": "person", "1": "bicycle", "2": "kart à pédales"},
    "args": {"half": True, "int8": False},
}


@pytest.fixture
def engine(tmp_path):
    """Write an engine file of these parts."""

    def write(*parts):
        path = tmp_path / "model.engine"
        path.write_bytes(b"".join(parts))
        return path

    return write


def ultralytics(header, plan=PLAN):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(4, "little", signed=True), text, plan


def test_a_plain_plan(engine):
    file = read_plan_file(engine(PLAN))
    assert (file.backend, file.version, file.metadata) == ("tensorrt", (10, 16, 1, 11), {})
    with file.plan() as plan:
        assert plan == PLAN


def test_a_header_says_what_an_onnx_files_metadata_would(engine):
    file = read_plan_file(engine(*ultralytics(HEADER)))
    assert file.version == (10, 16, 1, 11)
    assert labels_from_metadata(file.metadata, 3) == ("person", "bicycle", "kart à pédales")
    assert image_size(file.metadata) == (480, 640)
    assert largest_stride(file.metadata) == 32
    assert (file.metadata["task"], file.metadata["batch"]) == ("detect", "4")
    assert json.loads(file.metadata["args"]) == {"half": True, "int8": False}
    with file.plan() as plan:
        assert plan == PLAN


@pytest.mark.parametrize("header", [{}, {"names": ["a", "b"]}, {"somebody": {"else's": [None]}}])
def test_a_header_may_leave_things_out(header, engine):
    file = read_plan_file(engine(*ultralytics(header)))
    assert file.metadata.keys() == header.keys()
    assert largest_stride(file.metadata) == 32


def test_a_plan_that_tensorrt_for_rtx_built(network, engine):
    built = compile_graph(onnx.load(network), "SM89").engine
    file = read_plan_file(engine(*ultralytics(HEADER, built)))
    assert file.backend == "tensorrt-rtx"
    assert ".".join(map(str, file.version)) == trt.__version__
    assert file.rejection("tensorrt-rtx", trt.__version__) is None
    with file.plan() as plan:
        assert plan == built


def test_a_form_that_is_not_known_has_no_version(engine):
    file = read_plan_file(engine(b"ftrt\x01", PLAN[5:]))
    assert (file.backend, file.version) == ("tensorrt", None)
    assert file.rejection("tensorrt", "11.4.0.106") is None


@pytest.mark.parametrize(
    ("tag", "backend", "version", "says"),
    [
        (b"ftrt", "tensorrt", "10.16.1.99", None),
        (b"ftrt", "tensorrt", "10.17.0.1", "or install TensorRT 10.16.1.11"),
        (b"ftrt", "tensorrt", "11.4.0.106", "TensorRT 10.16.1.11, and TensorRT 11.4.0.106 cannot"),
        (b"ftrt", "tensorrt", "10.13.2.6", "TensorRT 10.16.1.11, and TensorRT 10.13.2.6 cannot"),
        (b"ftrt", "tensorrt-rtx", "10.16.1.11", "or serve it with --backend tensorrt"),
        (b"vtrt", "tensorrt-rtx", "10.17.0.1", "or install TensorRT for RTX 10.16.1.11"),
        (b"vtrt", "tensorrt", "10.16.1.11", "or serve it with --backend tensorrt-rtx"),
    ],
)
def test_who_can_load_a_plan(tag, backend, version, says, engine):
    rejection = read_plan_file(engine(tag, PLAN[4:])).rejection(backend, version)
    assert (rejection is None) is (says is None)
    assert (says or "") in (rejection or "")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"\x08\x07\x12\x07pytorch", "not a TensorRT engine"),
        (b"\x00\x01\x00\x00not JSON" + PLAN, "not a TensorRT engine"),
        (b"ftrt", "no TensorRT plan at byte 0"),
        (PLAN[:27], "no TensorRT plan at byte 0"),
        (b"ptrt" + PLAN[4:], "not a TensorRT engine"),
        (b"\xff\xff\xff\x7f{}" + PLAN, "a header of 2147483647\\): copy"),
        (b"\xff\xff\xff\xff{}" + PLAN, "a header of -1\\): copy"),
        (b"\x00\x00\x00\x00{}" + PLAN, "a header of 0\\): copy"),
        (b"\x40\x00\x00\x00{}" + PLAN, "a header of 64\\): copy"),
        (b"\x02\x00\x00\x00{}" + b"ptrt" + PLAN[4:], "no TensorRT plan at byte 6"),
    ],
)
def test_what_is_no_engine_is_refused(content, says, engine):
    with pytest.raises(InvalidModel, match=says):
        read_plan_file(engine(content))


@pytest.mark.parametrize(
    ("header", "says"),
    [
        (b'{"names": {"0": "person"}', "EOF"),
        (b'{"names": "\xff"}', "the whole"),
        (b'{"names": ["\\ud800"]}', "the whole"),
        (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "recursion limit"),
        ({"names": {"0": 1}}, r"names\..*valid string"),
        ({"names": {"1": "person"}}, "names: class ids must be"),
        ({"names": []}, "names: class ids must be"),
        ({"names": None}, "names: class ids must be"),
        ({"task": 5}, "task"),
        ({"stride": 0}, "stride"),
        ({"stride": "32"}, "stride"),
        ({"stride": 10**400}, "stride"),
        ({"imgsz": [640]}, "imgsz"),
        ({"imgsz": [640, -640]}, "imgsz"),
        ({"imgsz": [640, 10**9]}, "imgsz"),
        ({"batch": True}, "batch"),
        ({"batch": -1}, "batch"),
    ],
)
def test_a_damaged_header_is_refused(header, says, engine):
    with pytest.raises(InvalidModel, match=rf"the header of .*model\.engine is damaged.*{says}"):
        read_plan_file(engine(*ultralytics(header)))


def test_an_absurd_header_costs_no_memory(engine):
    path = engine(b"\x00\x00\x00\x40{")
    os.truncate(path, 3 << 30)
    tracemalloc.start()
    with pytest.raises(InvalidModel, match="1073741824"):
        read_plan_file(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def test_a_plan_is_mapped_and_not_read(engine):
    path = engine(*ultralytics(HEADER))
    os.truncate(path, 3 << 30)
    tracemalloc.start()
    with read_plan_file(path).plan() as plan:
        assert plan.nbytes > 2.9 * 2**30
        assert plan[:4] == b"ftrt"
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(NotFound, match=r"no\.engine"):
        read_plan_file(tmp_path / "no.engine")
    with pytest.raises(InvalidModel):
        read_plan_file(tmp_path)
