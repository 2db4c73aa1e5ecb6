"""The collected models: each is prepared once, built as tests ask for it, and served."""

import shutil
from functools import cache

import httpx
import pytest
from tests.engines.zoo.cases import IN_FLOATS, plan_of
from tests.serving import start_server

from fovea_engines.build.build import build
from fovea_engines.build.prepare import prepare

pytest.register_assert_rewrite("tests.engines.zoo.checks")


@pytest.fixture(scope="module", autouse=True)
def prepared_once():
    """Normalise and recognise each model once, for all backends and precisions."""
    kept = {}

    def prepared(plan, progress):
        if plan.source not in kept:
            kept[plan.source] = prepare(plan, progress)
        return kept[plan.source]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fovea_engines.build.build.prepare", prepared)
        yield


@pytest.fixture(scope="module")
def bus(shared, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bus")
    shutil.copy(shared / "data" / "bus.jpg", folder)
    return folder


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    return tmp_path_factory.mktemp("repository")


@pytest.fixture(scope="module")
def built(bus, repository):
    """The plan of a model that is built for a backend, in FP32."""

    @cache
    def built_once(name, backend):
        plan = plan_of(name, f"{name}-{backend}", repository, backend, images=bus)
        build(plan)
        return plan

    return built_once


@pytest.fixture(scope="module")
def built_whole(bus, tmp_path_factory):
    """The same of an engine that takes decoded images, and suppresses boxes itself."""
    repository = tmp_path_factory.mktemp("whole")

    @cache
    def built_once(name):
        whole = {"image_front": name not in IN_FLOATS, "nms_tail": True}
        plan = plan_of(name, name, repository, "onnxruntime", images=bus, **whole)
        build(plan)
        return plan

    return built_once


@pytest.fixture(scope="module")
def served(built, repository, tmp_path_factory):
    """Where a model predicts that is built for a backend. One server has them all."""
    flags = ["--model-control-mode=explicit"]
    server = start_server(repository, tmp_path_factory.mktemp("log"), flags)

    @cache
    def loaded(name, backend):
        plan = built(name, backend)
        load = f"{server.url}/v2/repository/models/{plan.name}/load"
        answer = httpx.post(load, timeout=60)
        assert answer.status_code == 200, answer.text
        return server.predict_url(plan.name)

    yield loaded
    assert server.stop() == 0
