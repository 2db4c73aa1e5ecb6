"""Several repositories that are served as one."""

import pytest
from tests.server.registries import adder, answer, wait_until

from fovea_preprocess.errors import LoadFailed, NotFound
from fovea_server.models.registry import Registry
from fovea_server.models.slot import IndexEntry
from fovea_server.settings import Settings


@pytest.fixture
def serve(tmp_path):
    registries = []

    def start(**settings):
        roots = (tmp_path / "a", tmp_path / "b", tmp_path / "a")
        registries.append(Registry(Settings(model_repository=roots, **settings)))
        registries[-1].start()
        wait_until(lambda: registries[-1].started)
        return registries[-1]

    adder(tmp_path / "a", "one", add=1)
    adder(tmp_path / "b", "two", add=2)
    yield start
    for registry in registries:
        registry.close()


def test_the_models_of_all_are_served(serve):
    registry = serve()
    assert registry.reason == ""
    assert answer(registry.find("one")) == 1
    assert answer(registry.find("two")) == 2
    assert [entry.name for entry in registry.index()] == ["one", "two"]


def test_a_name_in_two_of_them_is_not_served(serve, tmp_path, caplog):
    adder(tmp_path / "b", "one", add=3)
    registry = serve()
    assert registry.reason.startswith(
        "one: failed to poll model 'one': not unique across all model repositories: "
        f"{tmp_path / 'a' / 'one'} and {tmp_path / 'b' / 'one'}: "
    )
    fault = registry.reason.removeprefix("one: ")
    one, two = registry.index()
    assert one == IndexEntry("one", None, "UNAVAILABLE", fault)
    assert two == IndexEntry("two", "1", "READY")
    assert "1 model ready, 1 failed: one (see above)" in caplog.text


def test_a_name_in_two_of_them_is_not_loaded(serve, tmp_path):
    adder(tmp_path / "b", "one", add=3)
    registry = serve(model_control_mode="explicit")
    with pytest.raises(LoadFailed, match="failed to load 'one', failed to poll"):
        registry.load("one")
    registry.load("two")
    assert answer(registry.find("two")) == 2


def test_each_of_them_has_to_be_there(tmp_path):
    adder(tmp_path / "a", "one")
    with pytest.raises(NotFound, match="nowhere"):
        Registry(Settings(model_repository=(tmp_path / "a", tmp_path / "nowhere")))
