"""Needs of replicas, as cards and configurations say them, and how many of them Serve runs."""

import json
import shutil
from types import SimpleNamespace

import pytest

pytest.importorskip("ray")
from ray.serve.config import AutoscalingConfig
from tests.server.registries import adder
from tests.stores import Bucket

from fovea_preprocess.errors import InvalidModel, NotFound
from fovea_server.ray.application import fits
from fovea_server.ray.needs import Needs, read_needs
from fovea_server.ray.policy import UNDER_WAY, scale_by_requests
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
    (repository / "plain" / "1").mkdir(parents=True)
    (repository / "plain" / "1" / "model.plan").write_bytes(b"")
    found = needs(repository)
    assert found["digits"] == Needs(1, 1, 8, (), False)
    assert found["plain"].gpus == 1


def test_a_configuration_that_cannot_be_read_is_named(repository):
    (repository / "digits" / "config.pbtxt").write_text("max_batch_size: many")
    with pytest.raises(InvalidModel, match="digits"):
        needs(repository)
    (repository / "empty").mkdir()
    with pytest.raises(NotFound):
        needs(repository / "empty")


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


def wanted(*under_way: float, target: float = 2.0, running: int = 1) -> float:
    told = {UNDER_WAY: dict(enumerate(under_way))} if under_way else {}
    config = AutoscalingConfig(target_ongoing_requests=target, max_replicas=8)
    given = {"aggregated_metrics": told, "target_num_replicas": running, "config": config}
    return scale_by_requests(SimpleNamespace(**given))[0]


def test_a_replica_for_each_target_of_all_requests():
    assert wanted(3.0, 5.0) == 4
    # Serve rounds it up: a model that is used at all keeps a replica.
    assert 0 < wanted(0.01) < 1
    assert wanted(0.0, 0.0) == 0
    # No replica has told.
    assert wanted(running=3) == 3


def test_a_replica_fits_on_one_node_and_not_on_the_rest_of_several():
    nodes = [{"CPU": 1.0}, {"CPU": 1.0, "GPU": 1.0}]
    assert fits({"CPU": 1, "GPU": 0}, nodes)
    assert fits({"CPU": 1, "GPU": 1}, nodes)
    assert not fits({"CPU": 2, "GPU": 0}, nodes)
