"""Both CPU backends against plain ONNX Runtime, on real models and a real image."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from threading import Event
from typing import Any, get_args

import cv2
import numpy as np
import onnxruntime as ort
import pytest

from fovea_engines import device
from fovea_engines.backends.registry import (
    BACKENDS,
    CPU_BACKENDS,
    DEFAULT_CPU_BACKEND,
    available_backends,
    get_backend,
    open_session,
)
from fovea_engines.session import TensorSpec
from fovea_preprocess.errors import BackendUnavailable, InferenceFailed, InvalidModel
from fovea_server.cli.options import Backend

pytestmark = pytest.mark.slow

Engine = Callable[[str, str], Path]
Reference = Callable[[str, int], "np.ndarray[Any, Any]"]


@pytest.fixture(scope="module")
def rows(shared: Path) -> np.ndarray[Any, Any]:
    """float32 [3, 3, 640, 640]: one image as it is, mirrored and darkened."""
    image = cv2.imread(str(shared / "data" / "bus.jpg"), cv2.IMREAD_COLOR_RGB)
    assert image is not None
    row = cv2.resize(image, (640, 640)).transpose(2, 0, 1).astype(np.float32) / 255
    return np.ascontiguousarray(np.stack([row, row[:, :, ::-1], row * 0.5]))


@pytest.fixture(scope="module")
def engine(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """Engine file of a backend for a model of the shared folder."""

    @cache
    def make(backend: str, model: str) -> Path:
        source = shared / "models" / f"{model}.onnx"
        if backend == "onnxruntime":
            return source
        return get_backend(backend).compile(source, tmp_path_factory.mktemp(model))

    return make


@pytest.fixture(scope="module")
def reference(shared: Path, rows: np.ndarray[Any, Any]) -> Reference:
    """The outputs of plain ONNX Runtime for the first rows, by model."""

    @cache
    def run(model: str, count: int) -> np.ndarray[Any, Any]:
        path = shared / "models" / f"{model}.onnx"
        plain = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
        result: np.ndarray[Any, Any] = plain.run(None, {"images": rows[:count]})[0]
        return result

    return run


def assert_agree(got: np.ndarray[Any, Any], want: np.ndarray[Any, Any]) -> None:
    """Boxes are in pixels up to 640 and scores up to 1: hundredths and ten-thousandths."""
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("backend", CPU_BACKENDS)
@pytest.mark.parametrize("model", ["yolov5n", "yolov8n"])
def test_every_layout_and_batch_agrees_with_plain_onnxruntime(
    backend: str, model: str, engine: Engine, reference: Reference, rows: np.ndarray[Any, Any]
) -> None:
    want = reference(model, 3)
    path = engine(backend, model)
    for max_batch in (1, 3):
        with open_session(backend, path, max_batch=max_batch) as session:
            assert session.max_batch == max_batch
            batch = np.ascontiguousarray(rows[:max_batch])
            for alone in (True, False):
                got = session.infer({"images": batch}, alone=alone)
                assert list(got) == ["output0"]
                assert_agree(got["output0"], want[:max_batch])


@pytest.mark.parametrize("backend", CPU_BACKENDS)
def test_a_model_with_one_fixed_row_takes_one_row_whatever_was_asked(
    backend: str, engine: Engine, reference: Reference, rows: np.ndarray[Any, Any]
) -> None:
    with open_session(backend, engine(backend, "yolov10n"), max_batch=8) as session:
        assert session.max_batch == 1
        assert session.inputs == (TensorSpec("images", "float32", (1, 3, 640, 640)),)
        assert session.outputs == (TensorSpec("output0", "float32", (1, 300, 6)),)
        got = session.infer({"images": rows[:1]})["output0"]
        # Rows of near-equal scores may swap; the detections that count come first.
        assert_agree(got[:, :4], reference("yolov10n", 1)[:, :4])
        with pytest.raises(InferenceFailed):
            session.infer({"images": rows})


@pytest.mark.parametrize("backend", CPU_BACKENDS)
def test_callers_side_by_side_each_get_their_own_answer_and_keep_it(
    backend: str, engine: Engine, reference: Reference, rows: np.ndarray[Any, Any]
) -> None:
    want = reference("yolov8n", 3)
    with open_session(backend, engine(backend, "yolov8n"), max_batch=1, threads=2) as session:
        assert session.concurrency == 2

        def call(i: int) -> np.ndarray[Any, Any]:
            feeds = {"images": np.ascontiguousarray(rows[i % 3 : i % 3 + 1])}
            return session.infer(feeds, alone=i % 4 == 0)["output0"]

        with ThreadPoolExecutor(max_workers=8) as pool:
            answers = list(pool.map(call, range(12)))
    for i, answer in enumerate(answers):
        assert_agree(answer, want[i % 3 : i % 3 + 1])
        assert answer.flags.writeable


def test_no_thread_is_bound_to_a_core(engine: Engine, rows: np.ndarray[Any, Any]) -> None:
    tasks = Path("/proc/self/task")
    if not tasks.is_dir():
        pytest.skip("threads are listed in Linux alone")
    before, ours = set(tasks.iterdir()), os.sched_getaffinity(0)
    seen = set()
    with (
        open_session("openvino", engine("openvino", "yolov8n"), max_batch=1) as session,
        ThreadPoolExecutor(1) as pool,
    ):
        # They may be bound only while they work.
        calls = [pool.submit(session.infer, {"images": rows[:1]}) for _ in range(4)]
        while not all(call.done() for call in calls):
            for each in set(tasks.iterdir()) - before:
                with suppress(ProcessLookupError):
                    seen.add(os.sched_getaffinity(int(each.name)) == ours)
    assert seen == {True}


@pytest.mark.parametrize("backend", CPU_BACKENDS)
def test_wrong_feeds_are_named(backend: str, engine: Engine, rows: np.ndarray[Any, Any]) -> None:
    with open_session(backend, engine(backend, "yolov5n"), max_batch=2) as session:
        for feeds, message in (
            ({}, "'images' is missing"),
            ({"images": rows[:1], "mask": rows}, "no input 'mask'; its inputs are 'images'"),
            ({"images": rows[:1].astype(np.float64)}, "float64; it must be float32"),
            ({"images": np.zeros((1, 3, 64, 32, 1), np.float32)}, "it must be .*640, 640"),
            ({"images": rows[:0]}, "0 rows; it must have from 1 to 2"),
            ({"images": rows}, "3 rows; it must have from 1 to 2"),
            ({"images": rows[:1, :, ::-1]}, "not C-contiguous"),
        ):
            with pytest.raises(InferenceFailed, match=message):
                session.infer(feeds)


@pytest.mark.parametrize("backend", CPU_BACKENDS)
def test_a_closed_session_says_so_and_lets_calls_in_progress_finish(
    backend: str, engine: Engine, reference: Reference, rows: np.ndarray[Any, Any]
) -> None:
    started = Event()

    class Signalling(dict[str, Any]):
        def __len__(self) -> int:
            started.set()
            return super().__len__()

    session = open_session(backend, engine(backend, "yolov8n"), max_batch=3)
    with ThreadPoolExecutor(max_workers=1) as pool:
        running = pool.submit(session.infer, Signalling(images=rows))
        assert started.wait(timeout=60)
        session.close()
        session.close()
        assert_agree(running.result()["output0"], reference("yolov8n", 3))
    with pytest.raises(InferenceFailed):
        session.infer({"images": rows})


@pytest.mark.parametrize("backend", CPU_BACKENDS)
def test_an_unreadable_engine_is_an_invalid_model(backend: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidModel):
        open_session(backend, tmp_path / "absent", max_batch=1)
    for name, content in (("model.onnx", b"no model"), ("model.xml", b"<net"), ("e.onnx", b"")):
        broken = tmp_path / name
        broken.write_bytes(content)
        with pytest.raises(InvalidModel):
            open_session(backend, broken, max_batch=1)


def test_an_unknown_backend_lists_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(BackendUnavailable, match="onnxruntime, openvino"):
        open_session("caffe", tmp_path / "model", max_batch=1)


def test_every_backend_reports_its_version() -> None:
    infos = {info.name: info for info in available_backends()}
    assert infos[DEFAULT_CPU_BACKEND].version
    assert infos["onnxruntime"].version == ort.__version__
    assert all(infos[name].problem is None for name in CPU_BACKENDS)


def test_the_registry_imports_no_runtime() -> None:
    code = (
        "import sys, fovea_engines.backends.registry as r; r.available_backends();"
        "assert not {'onnxruntime', 'openvino', 'onnx'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_first_calls_side_by_side_do_not_lock_up(built_repository: Path) -> None:
    """OpenVINO's binding deadlocks when two threads are the first to use it."""
    code = (
        "import sys, threading, pathlib, numpy as np\n"
        "from fovea_engines.backends.registry import open_session\n"
        "sys.setswitchinterval(1e-6)\n"
        f"path = pathlib.Path({str(built_repository / 'tiny' / '1' / 'model.xml')!r})\n"
        "def use():\n"
        "    with open_session('openvino', path, max_batch=1) as session:\n"
        "        [image] = session.inputs\n"
        "        session.infer({image.name: np.zeros((1, *image.shape[1:]), np.float32)})\n"
        "threads = [threading.Thread(target=use) for _ in range(3)]\n"
        "[t.start() for t in threads], [t.join() for t in threads]\n"
    )
    for _ in range(3):
        subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize(
    ("name", "max_batch", "inputs"),
    [
        ("simple", 8, [("INPUT0", "int32", (-1, 16)), ("INPUT1", "int32", (-1, 16))]),
        ("simple_nobatch", 0, [("INPUT0", "int32", (16,)), ("INPUT1", "int32", (16,))]),
        ("identity_fp16", 0, [("INPUT0", "float16", (-1, -1))]),
        ("identity_bool", 0, [("INPUT0", "bool", (-1, -1))]),
        ("identity_bytes", 0, [("INPUT0", "object", (-1, -1))]),
        ("identity_bf16", 0, [("INPUT0", "bfloat16", (-1, -1))]),
        ("densenet_onnx", 0, [("data_0", "float32", (3, 224, 224))]),
    ],
)
def test_models_of_a_plain_triton_repository_open_in_onnxruntime(
    name: str, max_batch: int, inputs: list[tuple[str, str, tuple[int, ...]]], shared: Path
) -> None:
    path = shared / "data" / "triton" / "models" / name / "1" / "model.onnx"
    with open_session("onnxruntime", path, max_batch=max_batch) as session:
        assert session.inputs == tuple(TensorSpec(*spec) for spec in inputs)
        assert session.max_batch == max_batch


def test_numbers_strings_and_defaults_pass_through_onnxruntime(shared: Path) -> None:
    models = shared / "data" / "triton" / "models"
    a, b = np.arange(32, dtype=np.int32).reshape(2, 16), np.ones((2, 16), np.int32)
    with open_session("onnxruntime", models / "simple/1/model.onnx", max_batch=8) as session:
        got = session.infer({"INPUT0": a, "INPUT1": b})
        np.testing.assert_array_equal(got["OUTPUT0"], a + b)
        np.testing.assert_array_equal(got["OUTPUT1"], a - b)
        with pytest.raises(InferenceFailed):
            session.infer({"INPUT0": a, "INPUT1": b[:1]})
    words = np.array([[b"ett", "två".encode()]], dtype=object)
    path = models / "identity_bytes/1/model.onnx"
    with open_session("onnxruntime", path, max_batch=0) as session:
        assert session.infer({"INPUT0": words})["OUTPUT0"].tolist() == words.tolist()
    path = models / "input_all_optional/1/model.onnx"
    with open_session("onnxruntime", path, max_batch=0) as session:
        assert session.inputs == ()
        assert session.infer({})["OUTPUT0"].shape == (1,)


def test_a_cpu_quota_is_a_number_of_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device.os, "sched_getaffinity", lambda _: set(range(64)))
    groups, own = tmp_path / "sys" / "fs" / "cgroup", tmp_path / "proc" / "self"
    groups.mkdir(parents=True)
    own.mkdir(parents=True)
    assert device.usable_cores(tmp_path) == 64
    (groups / "cpu.max").write_text("max 100000\n")
    assert device.usable_cores(tmp_path) == 64
    (own / "cgroup").write_text("0::/pod/app\n")
    (groups / "pod" / "app").mkdir(parents=True)
    (groups / "pod" / "cpu.max").write_text("250000 100000\n")
    assert device.usable_cores(tmp_path) == 3
    (groups / "cpu").mkdir()
    (groups / "cpu" / "cpu.cfs_quota_us").write_text("50000\n")
    (groups / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert device.usable_cores(tmp_path) == 1


def test_the_command_offers_every_backend():
    assert get_args(Backend) == ("auto", *BACKENDS)
