"""A model version that cannot be served says why."""

import json
import shutil
from pathlib import Path

import pytest

from fovea_server.models.config.config import load_config
from fovea_server.models.model import ServedModel, State
from fovea_server.settings import Settings

pytestmark = pytest.mark.slow

DEMO = Path(__file__).resolve().parents[3] / "server" / "fovea_server" / "demo" / "digits.onnx"


@pytest.fixture
def folder(demo_batches, tmp_path) -> Path:
    return shutil.copytree(demo_batches, tmp_path / "repository") / "digits" / "1"


def nobody(name: str, version: int | None) -> ServedModel:
    raise AssertionError("only ensembles ask for others")


def loaded(folder: Path, *, rebuild: bool = False) -> ServedModel:
    config = load_config(folder.parent, "digits")
    model = ServedModel(1, folder, Settings(rebuild=rebuild), config, nobody)
    model.load(rebuild=rebuild)
    return model


@pytest.mark.parametrize("rebuild", [False, True])
@pytest.mark.parametrize("bits", [7, 8])
def test_an_engine_that_would_overflow_on_this_cpu_is_not_served(
    folder, bits, rebuild, monkeypatch
):
    monkeypatch.setattr("fovea_engines.repository.card.int8_saturates", lambda: True)
    path = folder / "card.json"
    changed = {"precision": "int8", "weight_bits": bits}
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))
    model = loaded(folder, rebuild=rebuild)
    if bits == 7:
        assert model.state is State.READY
        model.close(1)
        return
    assert model.state is State.UNAVAILABLE
    assert "INT8 weights of 8 bits; this CPU" in model.reason
    assert "build it again with `fovea build`" in model.reason
    assert "--rebuild" not in model.reason


@pytest.mark.parametrize("max_batch", [10**9, 1025, 0, -1])
def test_an_absurd_max_batch_in_the_card_is_named(folder, max_batch):
    path = folder / "card.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"max_batch": max_batch}))
    model = loaded(folder)
    assert model.state is State.UNAVAILABLE
    assert f"max_batch is {max_batch}, and must be from 1 to 1024" in model.reason


def test_an_absurd_max_batch_size_of_a_plain_model_is_named(tmp_path):
    folder = tmp_path / "digits" / "1"
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(DEMO.read_bytes())
    (folder.parent / "config.pbtxt").write_text("max_batch_size: 2000000000")
    model = loaded(folder)
    assert model.state is State.UNAVAILABLE
    assert "correct max_batch_size in config.pbtxt" in model.reason
