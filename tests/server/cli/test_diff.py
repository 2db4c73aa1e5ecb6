"""`fovea diff` as it is typed."""

import json

import onnx
import pytest
from tests.engines.sabotage import scale_weight, scramble
from tests.engines.tiny import tiny_detector


@pytest.fixture(scope="module")
def wrong_model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wrong")
    model = onnx.load(tiny_detector(folder / "m.onnx"))
    assert scale_weight(model, 1) == "c16"
    onnx.save(model, folder / "m.onnx")
    return folder / "m.onnx"


def test_the_first_tensor_that_diverges_is_shown_with_its_cause(fovea, tiny_model, wrong_model):
    code, out, err = fovea("diff", tiny_model, wrong_model, "--values")
    assert code == 1, err
    for text in (
        "Conv 1x7x4x4, diverges",
        "first values of A",
        "First divergent tensor: c16 (Conv): SNR 6.0 dB while its inputs are equal: "
        "its w16 is 1.5 times A's.",
    ):
        assert text in out
    assert "Sigmoid" not in out
    assert "Sigmoid" in fovea("diff", tiny_model, wrong_model, "--all")[1]
    code, out, _ = fovea("diff", tiny_model, wrong_model, "--json")
    found = json.loads(out)
    assert code == 1
    first = found["first_divergent"]
    assert first["a"]["tensor"] == "c16"
    assert first["snr_db"] == pytest.approx(6.02, abs=0.01)
    assert first["inputs_snr_db"] is None
    assert first["causes"] == ["its w16 is 1.5 times A's"]
    assert (found["agrees"], found["threshold_db"]) == (False, 60)
    assert found["matched"] == {"by_name": len(found["tensors"]), "by_order": 0}
    assert found["unmatched"] == {"a": [], "b": []}
    [c8] = (t for t in found["tensors"] if t["a"]["tensor"] == "c8")
    assert (c8["equal"], c8["snr_db"], c8["cosine"]) == (True, None, pytest.approx(1))
    assert c8["a"]["values"] == c8["b"]["values"]
    assert len(c8["a"]["values"]) == 5
    assert c8["a"]["shape"] == [1, 7, 8, 8]


def test_nothing_diverges_exits_with_0(fovea, tiny_model, wrong_model, tmp_path):
    model = onnx.load(tiny_model)
    scramble(model)
    onnx.save(model, tmp_path / "scrambled.onnx")
    code, out, _ = fovea("diff", tiny_model, "scrambled.onnx")
    assert code == 0
    assert "0 matched by name" in out
    assert "No tensor diverges: all are equal." in out
    assert fovea("diff", tiny_model, wrong_model, "--snr", 1)[0] == 0


def test_an_engine_is_compared_with_its_source(fovea, tiny_model, wrong_model, built_repository):
    for engine in (built_repository / "tiny", built_repository / "tiny" / "1"):
        code, out, err = fovea("diff", tiny_model, engine)
        assert code == 0, err
        assert "model.xml" in out
        assert "No tensor diverges" in out
    code, out, _ = fovea("diff", built_repository / "tiny", tiny_model)
    assert code == 0
    assert "( " not in out
    code, out, _ = fovea("diff", wrong_model, built_repository / "tiny")
    assert code == 1
    assert "First divergent tensor: c16 (Conv): SNR" in out
    assert "cannot be compared" in out


def test_what_cannot_be_compared_is_refused(fovea, tiny_model, built_repository):
    assert fovea("diff", tiny_model, tiny_model, "--head", "yolov8")[0] == 0
    for arguments, code, says in (
        ((tiny_model, tiny_model, "--head", "yolox"), 1, "yolox"),
        ((built_repository / "tiny",) * 2 + ("--head", "yolov8"), 2, "--head"),
        *(((tiny_model, tiny_model, "--snr", snr), 2, "over 0") for snr in ("nan", "inf", "0")),
    ):
        found, out, err = fovea("diff", *arguments)
        assert (found, out, says in err) == (code, "", True), err
