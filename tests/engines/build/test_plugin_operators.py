"""Networks with operators that only TensorRT's plugins compute, on a stand-in for a GPU."""

import json

import onnx
import pytest
from onnx import helper
from tests.engines.shared_library import compile_library

from fovea_engines.backends.registry import get_backend, open_session
from fovea_engines.backends.tensorrt.backend import ENGINE_FILE, KEPT_FILE, TensorRTBackend
from fovea_engines.repository.card import EngineCard
from fovea_preprocess.errors import BackendUnavailable

pytestmark = pytest.mark.real

RTX = ("--backend", "tensorrt-rtx", "--compute-capability", "80")


@pytest.fixture(params=["", "TRT"])
def swirled(request, tiny_model, tmp_path):
    """A detector with a plugin's operator behind its image, in ONNX's domain or another."""
    model = onnx.load(tiny_model)
    image = model.graph.input[0].name
    for node in model.graph.node:
        node.input[:] = ["swirled" if name == image else name for name in node.input]
    swirl = helper.make_node("Swirl", [image], ["swirled"], domain=request.param, angle=0.5)
    model.graph.node.insert(0, swirl)
    if request.param:
        model.opset_import.append(helper.make_opsetid(request.param, 1))
    path = tmp_path / "swirled.onnx"
    onnx.save(model, path)
    return path


@pytest.fixture
def plugin(tmp_path):
    return ("--plugin", compile_library(tmp_path / "libswirl.so", "int swirl;"))


@pytest.fixture
def compiles(monkeypatch):
    """TensorRT for RTX that takes any plugin."""
    pytest.importorskip(
        "tensorrt_rtx_bindings", reason="TensorRT for RTX is not installed: pip install '.[rtx]'"
    )

    def compile(self, model, folder, plan=None):
        (folder / KEPT_FILE).write_bytes(model)
        (folder / ENGINE_FILE).write_bytes(b"a plan")
        return folder / ENGINE_FILE

    monkeypatch.setattr(TensorRTBackend, "compile", compile)


@pytest.fixture
def gpu(compiles, monkeypatch, tmp_path):
    """A GPU whose plugin changes nothing."""

    def opened(backend, path, **options):
        model = onnx.load(path.with_name(KEPT_FILE))
        [swirl] = (node for node in model.graph.node if node.op_type == "Swirl")
        swirl.op_type, swirl.domain = "Identity", ""
        del swirl.attribute[:]
        file = get_backend("onnxruntime").compile(model.SerializeToString(), tmp_path)
        return open_session("onnxruntime", file, max_batch=options["max_batch"])

    for module in ("build.assemble", "engine"):
        monkeypatch.setattr(f"fovea_engines.{module}.open_session", opened)


@pytest.mark.parametrize("backend", ["openvino", "onnxruntime"])
def test_a_cpu_refuses_the_operator_by_its_name(fovea, swirled, backend):
    code, _, err = fovea("build", swirled, "--backend", backend)
    said = " ".join(err.split())
    assert code == 1
    assert "Swirl" in said
    assert "--backend tensorrt --plugin LIB.so" in said


def test_the_engine_is_unproven(fovea, swirled, plugin, gpu, tmp_path):
    build = ("build", swirled, "--name", "s", "--head", "yolov8", *RTX, *plugin)
    code, _, err = fovea(*build)
    assert code == 0, err
    assert "unproven: only TensorRT computes Swirl" in " ".join(err.split())
    folder = tmp_path / "repository" / "s" / "1"
    card = EngineCard.read(folder / "card.json")
    assert (card.unproven, card.agreement) == (("Swirl",), None)
    assert "Swirl" in {node.op_type for node in onnx.load(folder / KEPT_FILE).graph.node}
    assert "**Published**: unproven. Only a plugin" in (folder / "card.md").read_text()
    code, out, _ = fovea("inspect", folder.parent, "--json")
    assert "Swirl" in json.dumps(json.loads(out))


@pytest.mark.parametrize("option", [("--precision", "fp16"), ("--tensorrt", "file.onnx")])
def test_nothing_measures_another_precision(fovea, swirled, plugin, gpu, option):
    code, _, err = fovea("build", swirled, *RTX, *plugin, *option)
    assert code == 1
    assert "Swirl, so another precision cannot be checked" in " ".join(err.split())


def test_nothing_stands_in_for_a_plugin(fovea, swirled, plugin, compiles, monkeypatch, tmp_path):
    def no_gpu(*_, **options):
        raise BackendUnavailable("there is no GPU")

    monkeypatch.setattr("fovea_engines.build.assemble.open_session", no_gpu)
    code, _, err = fovea("build", swirled, "--head", "yolov8", *RTX, *plugin)
    assert code == 1
    assert "no other runtime has its plugins" in " ".join(err.split())
    assert not list(tmp_path.glob("repository/*/1"))
