"""Needs of replicas, as cards and configurations say them."""

import json
import shutil

import pytest
from tests.server.registries import adder
from tests.stores import Bucket

from fovea_preprocess.errors import InvalidModel, NotFound
from fovea_server.ray.needs import Needs, read_needs
from fovea_server.settings import Settings

pytestmark = pytest.mark.cluster


@pytest.fixture
def repository(demo_repository, tmp_path):
    shutil.copytree(demo_repository, tmp_path / "models")
    return tmp_path / "models"


def needs(repository):
    return read_needs(Settings(model_repository=(repository,)))


def test_an_engine_of_a_cpu_takes_a_core_or_its_threads(repository):
    assert needs(repository) == {"digits": Needs(1, 0, 1, (), False)}
    parameters = 'parameters { key: "INFERENCE_NUM_THREADS" value { string_value: "3" } }'
    (repository / "digits" / "config.pbtxt").write_text(parameters)
    assert needs(repository)["digits"].cores == 3


def test_an_engine_of_tensorrt_takes_a_gpu(repository):
    card = repository / "digits" / "1" / "card.json"
    written = json.loads(card.read_text()) | {"backend": "tensorrt", "max_batch": 8}
    card.write_text(json.dumps(written))
    assert needs(repository)["digits"] == Needs(1, 1, 8, (), False)


def test_a_plan_without_a_card_takes_a_gpu(tmp_path):
    folder = tmp_path / "plain" / "1"
    folder.mkdir(parents=True)
    (folder / "model.plan").write_bytes(b"")
    assert needs(tmp_path)["plain"].gpus == 1


def test_a_configuration_that_cannot_be_read_is_named(repository):
    (repository / "digits" / "config.pbtxt").write_text("max_batch_size: many")
    with pytest.raises(InvalidModel, match=r"model digits cannot be served: .*take it out"):
        needs(repository)


def test_a_folder_without_models(tmp_path):
    with pytest.raises(NotFound, match="there is no model in the repository"):
        needs(tmp_path)


def test_of_a_store_only_descriptions_are_read(demo_repository, tmp_path, monkeypatch):
    bucket = Bucket()
    try:
        bucket.upload(demo_repository / "digits", "digits")
        bucket.upload(adder(tmp_path / "adder", "plus", add=2), "plus")
        for name, value in bucket.variables.items():
            monkeypatch.setenv(name, value)
        bucket.damage("digits/1/model.onnx", b"nobody reads it")
        found = needs(bucket.address)
    finally:
        bucket.stop()
    assert found["digits"] == needs(demo_repository)["digits"]
    assert "plus" in found
