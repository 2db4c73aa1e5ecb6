"""The probes of kubelet and of Knative's queue-proxy, while 16 clients keep the server busy."""

import shutil

import httpx
import pytest
from ruamel.yaml import YAML
from tests.conftest import ROOT
from tests.load import Load, over_http
from tests.serving import start_server

pytestmark = pytest.mark.slow

[MANIFEST] = YAML(typ="safe").load_all(ROOT / "docker" / "kubernetes" / "base" / "deployment.yaml")
[CONTAINER] = MANIFEST["spec"]["template"]["spec"]["containers"]
TIMEOUT_S = CONTAINER["readinessProbe"]["timeoutSeconds"]
PROBES = ("/v2/health/live", "/v2/health/ready", "/v2/models/digits/ready")
HEADERS = (
    {"User-Agent": "kube-probe/1.34", "Connection": "close"},
    {"User-Agent": "kube-probe/1.34", "K-Network-Probe": "queue"},
)


def probe(url: str) -> None:
    """Each on a connection of its own; another status or a late answer fails."""
    for path in PROBES:
        for headers in HEADERS:
            answer = httpx.get(url + path, headers=headers, timeout=TIMEOUT_S)
            assert answer.status_code == 200, (path, answer.text)


def test_they_are_answered_while_all_cores_are_busy(demo_server):
    with Load(over_http(demo_server.url)) as load:
        load.wait_for_more()
        for _ in range(25):
            probe(demo_server.url)
            load.wait_for_more(1)
    assert not load.failed, load.failed


def test_readiness_stays_while_a_model_is_replaced(demo_versions, tmp_path):
    repository = tmp_path / "repository"
    shutil.copytree(demo_versions, repository)
    second = (repository / "digits" / "2").rename(tmp_path / "second")
    flags = ("--model-control-mode=poll", "--repository-poll-secs=0.1", "--log-access=false")
    server = start_server(repository, tmp_path, flags)
    try:
        with Load(over_http(server.url)) as load:
            for _ in range(2):
                before = load.answered["2"]
                shutil.copytree(second, repository / "digits" / ".new")
                (repository / "digits" / ".new").rename(repository / "digits" / "2")
                while load.answered["2"] == before:
                    probe(server.url)
                    load.wait_for_more(1)
                before = load.answered["1"]
                shutil.rmtree(repository / "digits" / "2")
                while load.answered["1"] == before:
                    probe(server.url)
                    load.wait_for_more(1)
        assert not load.failed, load.failed
    finally:
        server.process.kill()
        server.process.wait()
