"""A model that is described says what it says when it is loaded."""

import pytest
from tests.built import build
from tests.odd import HEAD, odd_model

from fovea_engines.build.plan import BuildPlan
from fovea_engines.heads.head_file import load_head
from fovea_server.dataplane.model_documents import model_document, model_list
from fovea_server.dataplane.v2_documents import model_metadata
from fovea_server.models.registry import Registry
from fovea_server.settings import Settings

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("repository", ["demo_repository", "demo_versions", "demo_batches"])
def test_documents_are_those_of_a_loaded_model(repository, request, started):
    settings = Settings(model_repository=(request.getfixturevalue(repository),))
    loaded, described = (
        started(Registry(settings, described=described)) for described in (False, True)
    )
    assert model_list(described) == model_list(loaded)
    assert model_document(described, "digits", None) == model_document(loaded, "digits", None)
    one, other = described.get("digits"), loaded.get("digits")
    assert one.config_json == other.config_json
    assert model_metadata(one, ()) == model_metadata(other, ())


def test_a_head_in_a_file_is_described(demo_model, tmp_path, started):
    (tmp_path / "odd.py").write_text(HEAD)
    source, family = odd_model(demo_model, tmp_path / "odd.onnx"), load_head(tmp_path / "odd.py")
    build(BuildPlan(source, "odd", tmp_path / "r", "onnxruntime", family=family.family))
    settings = Settings(model_repository=(tmp_path / "r",), allow_code=True)
    loaded, described = (
        started(Registry(settings, described=described)) for described in (False, True)
    )
    assert model_document(described, "odd", None) == model_document(loaded, "odd", None)
    refused = started(Registry(Settings(model_repository=(tmp_path / "r",)), described=True))
    assert "--allow-code" in refused.get("odd").reason


def test_only_some_models_exist(demo_repository, started):
    settings = Settings(model_repository=(demo_repository,))
    assert started(Registry(settings, only=("other",))).index() == []
    assert [each.name for each in started(Registry(settings, only=("digits",))).index()] == [
        "digits"
    ]


@pytest.fixture
def started():
    """Start registries, and close them at the end."""
    running = []

    def start(registry: Registry) -> Registry:
        registry.start()
        running.append(registry)
        registry._thread.join()
        return registry

    yield start
    for registry in running:
        registry.close()
