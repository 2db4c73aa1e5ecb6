"""`fovea predict --out` of maps: drawn from an engine's answers and a server's."""

import json

import numpy as np
import pytest
from tests.serving import start_server

from fovea_engines.drawing.drawing import draw, encode
from fovea_engines.engine import Engine
from fovea_engines.evaluation.samples import read_image
from fovea_preprocess.image import decode_image

pytestmark = pytest.mark.real

MODELS = {"yolo26-sem": "semantic", "u2netp": "saliency", "yolo26-depth": "depth"}


@pytest.fixture(scope="module")
def repository(shared, tmp_path_factory):
    root = tmp_path_factory.mktemp("maps")
    for name in MODELS:
        file = shared / "models" / ("" if name == "u2netp" else "heads") / f"{name}.onnx"
        (root / name / "1").mkdir(parents=True)
        (root / name / "1" / "model.onnx").symlink_to(file)
    return root


@pytest.fixture(scope="module")
def server(repository, tmp_path_factory):
    running = start_server(repository, tmp_path_factory.mktemp("log"))
    yield running
    assert running.stop() == 0


@pytest.fixture(params=["here", "url"])
def source(request, repository):
    if request.param == "here":
        return "--repository", repository
    return "--url", request.getfixturevalue("server").url


@pytest.mark.parametrize("model", MODELS)
def test_a_map_is_drawn_as_its_head_has_it(fovea, source, repository, shared, tmp_path, model):
    bus = shared / "data" / "bus.jpg"
    given = ("predict", model, bus, *source, "--out", "out", "--format")
    code, _, err = fovea(*given, "annotated,jsonl")
    assert code == 0, err
    [line] = (tmp_path / "out" / "predictions.jsonl").read_text().splitlines()
    assert MODELS[model] in json.loads(line)
    with Engine.open(repository / model / "1") as engine:
        pixels = read_image(bus)
        whole = draw(engine.predict(pixels), pixels, engine.vocabulary())
    expected = decode_image(encode(whole, "image/jpeg")).pixels
    drawn = read_image(tmp_path / "out" / "annotated" / "bus.jpg")
    # Answers have levels of 8 and 16 bits.
    assert np.abs(drawn.astype(int) - expected).mean() < 0.5
    code, _, err = fovea(*given, "yolo")
    assert code == 2
    assert "it can have annotated, jsonl" in err
    code, _, err = fovea(*given, "annotated", "--mask", "none")
    assert code == 2
    assert "and with --mask none: it can have jsonl" in err
