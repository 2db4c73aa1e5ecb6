"""What a profile for single images and CUDA graphs are worth, on this GPU."""

import logging
from pathlib import Path

import numpy as np
import pytest
from tests.conftest import SHARED

from fovea_engines.backends.tensorrt import session
from fovea_engines.backends.tensorrt.batch_context import Recorder
from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan
from fovea_engines.engine import Engine
from fovea_engines.evaluation.speed import call_rate
from fovea_engines.repository.options import BuilderOptions, Profile, default_profiles

pytestmark = [pytest.mark.real, pytest.mark.timeout(1800)]

ROWS = 8
SECONDS = 3
PROFILES = {"one profile": (Profile(1, ROWS, ROWS),), "default": default_profiles(ROWS)}


@pytest.fixture
def model(demo_model) -> Path:
    """YOLOv8n where it is, and else the demo's detector, which every machine has."""
    known = SHARED / "models" / "yolov8n.onnx"
    return known if known.is_file() else demo_model


def measure(folder: Path) -> dict[str, float]:
    """Images a second of one caller and of two, whose copies overlap, in batches of 1 and 8."""
    found = {}
    with Engine.open(folder) as engine:
        [image] = engine.session.inputs
        for rows in (1, ROWS):
            feeds = {image.name: np.zeros((rows, *image.shape[1:]), image.dtype)}

            def infer(_: int, feeds=feeds) -> None:
                engine.session.infer(feeds)

            for callers in (1, 2):
                rate = call_rate(infer, callers=callers, seconds=SECONDS)
                found[f"batches of {rows}, {callers} callers"] = round(rate * rows, 1)
    return found


@pytest.mark.parametrize("profiles", PROFILES)
def test_images_a_second(backend, model, tmp_path, profiles, record_property, caplog, monkeypatch):
    builder = BuilderOptions(PROFILES[profiles], level=2)
    plan = BuildPlan(
        model, "m", tmp_path / "r", backend, max_batch=ROWS, precision="fp16", builder=builder
    )
    build(plan)
    folder = tmp_path / "r" / "m" / "1"
    record_property("model", model.name)
    with caplog.at_level(logging.WARNING, "fovea_engines.backends.tensorrt"):
        for name, rate in measure(folder).items():
            record_property(f"{name}, graphs", rate)
    assert "without CUDA graphs" not in caplog.text
    monkeypatch.setattr(session, "Recorder", lambda device, wanted: Recorder(device, wanted=False))
    for name, rate in measure(folder).items():
        record_property(f"{name}, no graphs", rate)
