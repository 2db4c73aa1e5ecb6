"""`fovea build --backend tensorrt-rtx` as it is typed, on a machine without a GPU."""

import json
import re

import numpy as np
import onnx
import pytest
from onnx import helper
from tests.engines.fake_device import FakeDevice
from tests.engines.fake_runtime import fake_gpu_machine
from tests.engines.tiny import constant, save

from fovea_engines.backends.installing import install_extra
from fovea_engines.backends.registry import open_session
from fovea_engines.backends.tensorrt.backend import ENGINE_FILE, KEPT_FILE
from fovea_engines.backends.tensorrt.cuda.letterbox import LETTERBOX_FILE
from fovea_engines.backends.tensorrt.layers_file import LAYERS_FILE
from fovea_engines.backends.tensorrt.plan_file import read_plan_file
from fovea_engines.device import Gpu
from fovea_engines.engine import Engine
from fovea_engines.repository.card import EngineCard
from fovea_preprocess.errors import BackendUnavailable

pytestmark = pytest.mark.slow

pytest.importorskip(
    "tensorrt_rtx_bindings", reason="TensorRT for RTX is not installed: pip install '.[rtx]'"
)
RTX = ("--backend", "tensorrt-rtx", "--compute-capability", "80,8.9")


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """Build times of another folder than the user's."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_plan_a_card_and_layers(fovea, deep_detector, tmp_path, precision):
    build = ("build", deep_detector, "--name", "d", *RTX, "--precision", precision)
    code, out, err = fovea(*build, "--profile", "1,2,4")
    assert code == 0, err
    assert "for SM80, SM89" in out
    assert "instead of the engine" in " ".join(out.split())
    assert "the last build of this engine" not in err
    folder = tmp_path / "repository" / "d" / "1"
    card = EngineCard.read(folder / "card.json")
    assert next(iter(card.files)) == ENGINE_FILE
    assert set(card.files) == {ENGINE_FILE, KEPT_FILE, LAYERS_FILE, LETTERBOX_FILE}
    assert (card.backend, card.precision, card.max_batch) == ("tensorrt-rtx", precision, 4)
    assert card.judge == "onnxruntime"
    assert card.agreement.quality > 0.95
    assert card.builder.capabilities == ("80", "89")
    assert (card.inputs[0].dtype, card.inputs[0].shape) == ("uint8", (-1, 64, 64, 3))
    assert card.outputs[0].shape[2] == 6
    assert read_plan_file(folder / ENGINE_FILE).backend == "tensorrt-rtx"
    kept = {value.name for value in onnx.load(folder / KEPT_FILE).graph.input}
    assert kept == {card.inputs[0].name}
    code, out, err = fovea("inspect", folder.parent, "--layers", "--json")
    assert code == 0, err
    found = json.loads(out)["layers"]
    wanted = {"fp32": "float32", "fp16": "float16"}[precision]
    kinds = [layer["precision"] for layer in found if layer["type"] == "convolution"]
    assert kinds.count(wanted) >= 4
    code, out, _ = fovea("inspect", folder.parent, "--layers")
    assert "convolution" in out
    code, _, err = fovea("inspect", folder / ENGINE_FILE)
    assert code == 1
    assert "to inspect an engine, give its folder" in err


def test_int8_is_signed_and_judged_as_it_is_built(fovea, deep_detector, images, tmp_path):
    build = ("build", deep_detector, "--name", "d", *RTX, "--precision", "int8")
    code, _, err = fovea(*build, "--calibration", images)
    assert code == 0, err
    assert "for TensorRT" in err  # the search, of this encoding alone
    folder = tmp_path / "repository" / "d" / "1"
    card = EngineCard.read(folder / "card.json")
    assert card.agreement.quality > 0.8
    kept = onnx.load(folder / KEPT_FILE).graph
    zeros = {w.data_type for w in kept.initializer if "zero_point" in w.name}
    assert zeros == {onnx.TensorProto.INT8}
    code, out, _ = fovea("inspect", folder.parent, "--layers", "--json")
    layers = json.loads(out)["layers"]
    assert "int8" in {one["precision"] for one in layers if one["type"] == "convolution"}


def test_the_next_build_is_told_how_long_it_takes(fovea, tiny_model):
    assert fovea("build", tiny_model, *RTX)[0] == 0
    code, _, err = fovea("build", tiny_model, "--name", "other", *RTX)
    assert code == 0
    assert "the last build of this engine" in err
    assert "for SM80, SM89" in err


def test_without_a_gpu_it_does_not_open(fovea, tiny_model, tmp_path):
    assert fovea("build", tiny_model, "--name", "t", *RTX)[0] == 0
    with pytest.raises(BackendUnavailable, match="GPU"):
        Engine.open(tmp_path / "repository" / "t" / "1")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--backend", "tensorrt-rtx"), "no GPU"),
        ((*RTX[:3], "90"), "does not support compute capability"),
        ((*RTX[:3], "75,89", "--precision", "int8"), "in FP16 for compute capability 75"),
        (("--backend", "openvino", "--profile", "1,2,4"), "--profile has no .* --backend tensorr"),
        ((*RTX, "--profile", "4,2,1"), "and ascend"),
        ((*RTX, "--profile", "1,2,4", "--max-batch", "4"), "--profile or --max-batch, not both"),
        ((*RTX, "--builder-level", "9"), "less than or equal to 5"),
        ((*RTX, "--plugin", "nowhere.so"), "does not exist"),
        (("--backend", "tensorrt"), re.escape(install_extra("tensorrt"))),
    ],
)
def test_what_cannot_be_says_what_to_do(fovea, tiny_model, tmp_path, options, reason):
    code, _, err = fovea("build", tiny_model, *options)
    assert code in (1, 2)
    assert err.splitlines()[-1].startswith("error: ")
    assert re.search(reason, err), err
    assert not list(tmp_path.glob("repository/*/1"))


class FakeGpuSession:
    """Stands for a GPU that is not here: ONNX Runtime on the kept graph, every box a bit off."""

    def __init__(self, plan_file, off):
        kept = plan_file.with_name(KEPT_FILE)
        self._session, self._off = open_session("onnxruntime", kept, max_batch=1), off

    def __getattr__(self, name):
        return getattr(self._session, name)

    def infer(self, feeds, *, alone=True):
        outputs = self._session.infer(feeds)
        for array in outputs.values():
            array[..., :4] += self._off
        return outputs


def test_where_it_runs_the_figures_are_its_own(fovea, deep_detector, images, tmp_path, monkeypatch):
    off = 0.1

    def opened(backend, path, **options):
        if backend == "tensorrt-rtx":
            return FakeGpuSession(path, off)
        return open_session(backend, path, **options)

    for module in ("build.assemble", "engine"):
        monkeypatch.setattr(f"fovea_engines.{module}.open_session", opened)
    build = ("build", deep_detector, "--name", "d", *RTX, "--precision", "fp16")
    code, _, err = fovea(*build, "--images", images)
    assert code == 0, err
    card = EngineCard.read(tmp_path / "repository" / "d" / "1" / "card.json")
    assert card.judge is None
    assert card.agreement.box_px > 0.05
    off = 8
    code, _, err = fovea(*build, "--images", images, "--builder-level", "2")
    assert code == 1
    assert "FP16 has an agreement" in err


def test_a_plan_that_does_not_run_where_it_should_is_no_engine(
    fovea, tiny_model, tmp_path, monkeypatch
):
    gpu = Gpu("NVIDIA L4", "89")
    monkeypatch.setattr("fovea_engines.build.assemble.gpu_here", lambda: gpu)
    code, _, err = fovea("build", tiny_model, "--name", "t", *RTX)
    assert code == 1
    assert "does not run on its GPU, NVIDIA L4" in err
    assert not (tmp_path / "repository" / "t").exists()
    # One for other GPUs need not run here.
    assert fovea("build", tiny_model, "--name", "t", *RTX[:3], "86")[0] == 0


def levels(path):
    """Write a YOLO-FastestV2 of random weights: a convolution for each level and kind of output."""
    random, side = np.random.default_rng(0), 352
    nodes, weights, outputs = [], [], []
    for stride in (16, 32):
        parts = []
        for kind, columns in (("reg", 12), ("obj", 3), ("cls", 80)):
            name = f"{kind}{stride}"
            kernel = random.normal(0, 0.1, (columns, 3, stride, stride)).astype(np.float32)
            weights.append(constant(f"w{name}", kernel))
            conv = ["images", f"w{name}"], [f"c{name}"]
            nodes.append(helper.make_node("Conv", *conv, strides=[stride, stride]))
            last = ("Softmax", {"axis": 1}) if kind == "cls" else ("Sigmoid", {})
            nodes.append(helper.make_node(last[0], [f"c{name}"], [name], **last[1]))
            parts.append(name)
        nodes.append(helper.make_node("Concat", parts, [f"all{stride}"], axis=1))
        output = f"out{stride}"
        nodes.append(helper.make_node("Transpose", [f"all{stride}"], [output], perm=[0, 2, 3, 1]))
        outputs.append((output, [1, side // stride, side // stride, 95]))
    return save(path, nodes, [("images", [1, 3, side, side])], outputs, weights)


def test_outputs_that_come_in_another_order_keep_their_meaning(tmp_path):
    """TensorRT promises their names alone: the levels of this head differ in nothing else."""
    from tests.engines.rtx import rtx_version

    model = levels(tmp_path / "levels.onnx")
    alone = rtx_version(tmp_path / "a", model, "levels", 1, nms_tail=False)
    with fake_gpu_machine(Gpu(FakeDevice.name, "80")) as machine:
        machine.model = alone / KEPT_FILE
        there = rtx_version(tmp_path / "b", model, "levels", 1, nms_tail=False)
        card = EngineCard.read(there / "card.json")
        with Engine.open(there) as engine:
            assert [spec.name for spec in engine.session.outputs] == ["out16", "out32"]
    assert card.judge is None
    assert [spec.name for spec in card.outputs] == ["out16", "out32"]
    assert card.head_outputs == ("out16", "out32")
    assert card.agreement.quality > 0.99
