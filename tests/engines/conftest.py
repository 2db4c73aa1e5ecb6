"""A model repository that is built once."""

from pathlib import Path

import pytest

from fovea_engines.build import build
from fovea_engines.card import EngineCard
from fovea_engines.plan import BuildPlan

from .tiny import tiny_detector


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory) -> Path:
    return tiny_detector(tmp_path_factory.mktemp("models") / "tiny.onnx")


@pytest.fixture(scope="session")
def built_repository(tiny_model, tmp_path_factory) -> Path:
    """A repository with one version of the model "tiny"; not to be written to."""
    repository = tmp_path_factory.mktemp("built") / "repository"
    build(BuildPlan(tiny_model, "tiny", repository))
    return repository


@pytest.fixture(scope="session")
def card(built_repository) -> EngineCard:
    return EngineCard.read(built_repository / "tiny" / "1" / "card.json")
