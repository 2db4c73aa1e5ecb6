"""From a repository of Triton to a server: the boxes are those of its own steps, run by hand."""

import shlex
import sys
from types import SimpleNamespace

import httpx
import numpy as np
import onnxruntime
import pytest
from tests.conftest import DEMO
from tests.server.start import steps
from tests.server.start.written import NETWORK, ensemble, python
from tests.serving import start_server

pytestmark = pytest.mark.slow


class Tensor(SimpleNamespace):
    def __init__(self, name, array):
        super().__init__(name=name, array=array)

    def as_numpy(self):
        return self.array


def run_step(source: str, monkeypatch, **tensors: np.ndarray) -> np.ndarray:
    """Run model.py as Triton does: its first output."""
    utils = SimpleNamespace(
        Tensor=Tensor,
        InferenceResponse=lambda output_tensors: output_tensors,
        get_input_tensor_by_name=lambda request, name: Tensor(name, request[name]),
    )
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", utils)
    names: dict[str, type] = {}
    exec(source, names)
    model = names["TritonPythonModel"]()
    getattr(model, "initialize", lambda args: None)({})
    return model.execute([tensors])[0][0].as_numpy()


def by_hand(image: bytes, monkeypatch) -> np.ndarray:
    """Boxes in pixels of the image, scores and classes, best first."""
    from PIL import Image

    session = onnxruntime.InferenceSession(DEMO / "digits.onnx")
    row = run_step(steps.LETTERBOX, monkeypatch, IMAGE=np.frombuffer(image, np.uint8))
    [output] = session.run(None, {"images": row})
    found = run_step(steps.SUPPRESS, monkeypatch, OUTPUT=output)
    with Image.open(DEMO / "scene-1.jpg") as opened:
        width, height = opened.size
    scale = min(320 / width, 320 / height)
    found[:, 0] -= (320 - round(width * scale)) / 2
    found[:, 1] -= (320 - round(height * scale)) / 2
    found[:, :4] /= scale
    found[:, 2:4] += found[:, :2]
    return found[np.argsort(-found[:, 4])]


def test_the_boxes_are_those_of_the_steps(fovea, triton, tmp_path, monkeypatch):
    repository = triton(
        pre=python(steps.LETTERBOX),
        digits=NETWORK,
        post=python(steps.SUPPRESS),
        detector={"config.pbtxt": ensemble("pre", "digits", "post")},
    )
    code, out, _ = fovea("init", "new", "--from-triton", repository)
    assert code == 0
    monkeypatch.chdir(tmp_path / "new")
    build = next(line for line in out.splitlines() if "fovea build" in line)
    code, _, err = fovea(*shlex.split(build)[1:], "--backend", "onnxruntime")
    assert code == 0, err
    asked = next(line for line in out.splitlines() if "?conf" in line).partition("?")[2]
    image = (DEMO / "scene-1.jpg").read_bytes()
    server = start_server(tmp_path / "new" / "repository", tmp_path)
    try:
        answer = httpx.post(f"{server.predict_url('digits')}?{asked}", content=image).json()
    finally:
        assert server.stop() == 0
    own = by_hand(image, monkeypatch)
    assert len(own) > 5
    served = [
        [*each["box"].values(), each["score"], each["class_id"]]
        for each in answer["images"][0]["detections"]
    ]
    assert np.array(served) == pytest.approx(own, abs=0.6)
    assert [row[5] for row in served] == own[:, 5].tolist()
    assert np.array(served)[:, 4] == pytest.approx(own[:, 4], abs=0.005)
