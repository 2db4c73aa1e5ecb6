"""Element types that numpy does not have, on real models of each runtime."""

from pathlib import Path

import numpy as np
import pytest

from fovea_engines.backends.registry import open_session
from fovea_preprocess.errors import UnsupportedModel


@pytest.fixture
def models(shared: Path) -> Path:
    return shared / "data" / "triton" / "models"


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
@pytest.mark.parametrize("shape", [(2, 3), (0, 3)])
def test_bfloat16(models: Path, backend: str, shape: tuple[int, int]) -> None:
    path = models / "identity_bf16" / "1" / "model.onnx"
    with open_session(backend, path, max_batch=0, threads=1) as session:
        assert session.inputs[0].dtype == session.outputs[0].dtype == "bfloat16"
        given = np.full(shape, 1.5, session.inputs[0].numpy_dtype)

        found = session.infer({"INPUT0": given})["OUTPUT0"]

    assert found.dtype == given.dtype
    np.testing.assert_array_equal(found, given)


def test_an_answer_in_bfloat16_outlives_the_next_one(models: Path) -> None:
    path = models / "identity_bf16" / "1" / "model.onnx"
    with open_session("onnxruntime", path, max_batch=0, threads=1) as session:
        dtype = session.inputs[0].numpy_dtype
        first = session.infer({"INPUT0": np.full((64, 64), 1, dtype)})["OUTPUT0"]
        session.infer({"INPUT0": np.full((64, 64), 2, dtype)})

    assert (first == 1).all()


@pytest.mark.parametrize(
    "elements",
    [[b""], [b"a\0b", b"a\0"], ["hé".encode()], [b"\xff\xfe", b"plain", "hé".encode()]],
)
def test_strings_are_bytes(models: Path, elements: list[bytes]) -> None:
    given = np.empty(len(elements), object)
    given[:] = elements
    path = models / "string_identity" / "1" / "model.onnx"
    with open_session("onnxruntime", path, max_batch=0, threads=1) as session:
        found = session.infer({"INPUT0": given})["OUTPUT0"]

    assert found.tolist() == elements


def test_numbers_in_strings(models: Path) -> None:
    given = np.empty((1, 16), object)
    given[0] = [b"%d" % n for n in range(16)]
    path = models / "simple_string" / "1" / "model.onnx"
    with open_session("onnxruntime", path, max_batch=8, threads=1) as session:
        found = session.infer({"INPUT0": given, "INPUT1": given})

    assert found["OUTPUT0"][0].tolist() == [b"%d" % (2 * n) for n in range(16)]
    assert set(found["OUTPUT1"][0].tolist()) == {b"0"}


def test_openvino_says_that_it_takes_no_strings(models: Path) -> None:
    path = models / "string_identity" / "1" / "model.onnx"
    with pytest.raises(UnsupportedModel, match="'INPUT0'"):
        open_session("openvino", path, max_batch=0, threads=1)
