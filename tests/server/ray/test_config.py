"""fovea-ray.yaml: what it says, and what is wrong with it."""

import pytest

pytest.importorskip("ray")
import fovea_cluster.ray
import fovea_server.ray
from fovea_preprocess.errors import InvalidOption
from fovea_server.ray.config import ClusterConfig, ModelOptions
from fovea_server.settings import Settings

pytestmark = pytest.mark.cluster


def test_options_of_a_model_those_of_every_model_and_the_defaults():
    every, own = {"min_replicas": 0}, {"cpus": 2}
    config = ClusterConfig.parse({"repository": "models", "models": {"*": every, "a": own}})
    assert config.options("a") == ModelOptions(cpus=2)
    assert config.options("b") == ModelOptions(min_replicas=0)
    assert ClusterConfig.parse({"repository": "models"}).options("a") == ModelOptions()


def test_settings_are_complete_and_can_be_read_again(monkeypatch):
    given = {"repository": ["models", "s3://bucket/x"], "settings": {"max_queue": 7}}
    monkeypatch.setenv("FOVEA_MAX_IMAGES", "3")
    settings = ClusterConfig.parse(given).server_settings()
    monkeypatch.setenv("FOVEA_MAX_IMAGES", "5")
    monkeypatch.setenv("FOVEA_MAX_QUEUE", "5")
    read = Settings(**settings)
    assert (read.max_queue, read.max_images) == (7, 3)
    folder, store = read.model_repository
    assert folder.is_absolute()
    assert str(store) == "s3://bucket/x"


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({}, ("repository",)),
        ({"repository": "m", "model": {}}, ("models?",)),
        ({"repository": "m", "models": {"a": {"cpu": 1}}}, ("models.a.cpu", "cpus?")),
        ({"repository": "m", "models": {"a": {"cpus": 0}}}, ("models.a.cpus is 0",)),
        ({"repository": "m", "models": {"a": {"min_replicas": 2}}}, ("max_replicas (1)",)),
        ({"repository": "m", "settings": {"max_quue": 1}}, ("settings.max_quue", "max_queue?")),
        ({"repository": "m", "settings": {"max_queue": 0}}, ("settings.max_queue is 0",)),
        ({"repository": "m", "settings": {"api": "roboflow"}}, ("settings.api",)),
        ({"repository": "m", "settings": {"threads": 2}}, ("`cpus`",)),
        ({"repository": "m", "settings": {"metrics_port": 1}}, ("metrics_port",)),
        (
            {"repository": "m", "models": {"a": {"min_replica": 0, "cpus": 0}}},
            ("models.a.cpus is 0", "min_replicas?"),
        ),
        (
            {"models": {}, "settings": {"max_quue": 1, "threads": 2}},
            ("repository", "max_queue?", "`cpus`"),
        ),
        ({"repository": "ftp://host/m"}, ("ftp://",)),
    ],
)
def test_all_that_is_wrong_is_named(given, named):
    with pytest.raises(InvalidOption) as error:
        ClusterConfig.parse(given).server_settings()
    assert all(word in str(error.value) for word in named)


def test_a_model_that_is_not_in_the_repository():
    config = ClusterConfig.parse({"repository": "m", "models": {"digit": {}, "*": {}}})
    with pytest.raises(InvalidOption, match=r"models.digit: .* digits\?"):
        config.check_models({"digits": None})


def test_configurations_of_0_1_find_the_applications():
    assert fovea_cluster.ray.build is fovea_server.ray.build
    assert fovea_cluster.ray.build_fronts is fovea_server.ray.build_fronts
