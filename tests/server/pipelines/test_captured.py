"""Captures of a pipeline: with blur they keep no text and no vector."""

import json

import httpx
import pytest
from tests.keyed import until
from tests.serving import start_server

pytestmark = pytest.mark.slow

TOML = '[capture]\nrules = ["rate 100%"]\nblur = "digits"\n'


def test_with_blur_no_text_and_no_vector_is_kept(repository, tmp_path, scene):
    (repository / "plates" / "fovea.toml").write_text(TOML)
    kept = tmp_path / "kept"
    server = start_server(repository, tmp_path, ["--capture", str(kept)])
    answer = httpx.post(server.predict_url("plates"), content=scene, timeout=60).json()
    assert any("text" in each for each in answer["images"][0]["detections"])
    until(lambda: any(kept.rglob("predictions.json")))
    assert server.stop() == 0
    [file] = kept.rglob("predictions.json")
    document = json.loads(file.read_text())
    objects = document["info"]["result"]["detections"]
    assert len(objects) == len(answer["images"][0]["detections"]) > 0
    assert any("attributes" in each for each in objects)
    assert not any(each.keys() & {"text", "embedding"} for each in objects)
    written = document["annotations"]
    assert not any(each.keys() & {"text", "embedding"} for each in written)
