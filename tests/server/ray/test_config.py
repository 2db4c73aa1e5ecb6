"""fovea-ray.yaml: what it says, and what is wrong with it."""

import pytest

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
    ("given", "message"),
    [
        ({}, "repository is missing: add it"),
        ({"repository": "m", "model": {}}, "model: there is no such key; did you mean models? "),
        (
            {"repository": "m", "models": {"a": {"cpu": 1}}},
            "models.a.cpu: there is no such key; did you mean cpus?",
        ),
        ({"repository": "m", "models": {"a": {"cpus": 0}}}, "models.a.cpus is 0; it must be "),
        (
            {"repository": "m", "models": {"a": {"min_replicas": 2}}},
            "models.a: min_replicas is 2 and max_replicas 1: raise max_replicas",
        ),
        (
            {"repository": "m", "settings": {"max_quue": 1}},
            "settings.max_quue: there is no such setting; did you mean max_queue?",
        ),
        ({"repository": "m", "settings": {"max_queue": 0}}, "settings.max_queue is 0; it must be"),
        ({"repository": "m", "settings": {"api": "roboflow"}}, "settings.api has no effect on a"),
        ({"repository": "m", "settings": {"threads": 2}}, "`cpus` of the model says"),
        ({"repository": "m", "settings": {"metrics_port": 1}}, "Ray exports the metrics"),
        (
            {"repository": "m", "models": {"a": {"min_replica": 0, "cpus": 0}}},
            "models.a.cpus is 0; it must be greater than or equal to 1\nmodels.a.min_replica: "
            "there is no such key; did you mean min_replicas?",
        ),
        (
            {"repository": "m", "settings": {"max_quue": 1, "threads": 2}},
            "here with _ for -\nsettings.threads has no effect on a cluster",
        ),
        (
            {"models": {}, "settings": {"threads": 2}},
            "repository is missing: add it\nsettings.threads has no effect on a cluster",
        ),
        ({"repository": "ftp://host/m"}, "ftp:// is no store that is known"),
    ],
)
def test_what_is_wrong_is_named(given, message):
    with pytest.raises(InvalidOption) as error:
        ClusterConfig.parse(given).server_settings()
    assert message in str(error.value)


def test_a_model_that_is_not_in_the_repository():
    config = ClusterConfig.parse({"repository": "m", "models": {"digit": {}, "*": {}}})
    with pytest.raises(InvalidOption, match=r"models.digit: .*did you mean digits\? it has digits"):
        config.check_models({"digits": None})
