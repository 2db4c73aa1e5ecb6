"""The profile `monitoring` of docker-compose.yml: a Prometheus beside the server.

It is Debian's package in a stand-in for the image, which has a newer version. The command, the
mounts and the rights are those of the compose file, and the user is the image's. Grafana is not
started: no package has it.
"""

import os
import re
import shutil
import signal

import httpx
import pytest
from ruamel.yaml import YAML
from tests.images.bases import ROOT, make_prometheus
from tests.images.podman import Podman
from tests.images.service import Service
from tests.server.metrics.prometheus import Prometheus, rules, shorten, wait_for

COMPOSE = YAML(typ="safe").load(ROOT / "docker-compose.yml")["services"]
NOBODY = 65534

pytestmark = [pytest.mark.images, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def prometheus(service: Service, bare: Podman, figures: list[str]) -> Prometheus:
    """Started by docs/how-to/monitoring.md, with the same files but for their intervals."""
    version = make_prometheus(bare, COMPOSE["prometheus"]["image"])
    figures.append(f"Prometheus of the stand-in: {version}")
    files = service.place.folder / "docker" / "monitoring"
    shutil.copytree(ROOT / "docker" / "monitoring", files)
    shorten(files / "prometheus", "1s")
    page = (ROOT / "docs" / "how-to" / "monitoring.md").read_text()
    [up] = re.findall(r"^(docker compose --profile cpu --profile monitoring up)$", page, re.M)
    service.compose(f"{up} --detach cpu prometheus")
    asked = Prometheus(f"http://127.0.0.1:{service.place.ports[9090]}")
    wait_for(asked.ready)
    return asked


def test_it_scrapes_the_server_by_its_name_and_has_the_rules(prometheus: Prometheus) -> None:
    wait_for(lambda: prometheus.targets() == {"fovea:8002": "up"})
    names = {rule["alert"] for rule in rules()}
    wait_for(lambda: prometheus.rules() == dict.fromkeys(names, "ok"))
    assert prometheus.query("fovea_ready == 1")


def test_it_runs_without_rights_on_a_read_only_root(
    prometheus: Prometheus, service: Service
) -> None:
    status = service.inside("cat", "/proc/1/status", service="prometheus").stdout
    found = dict(line.split(":\t") for line in status.splitlines() if ":\t" in line)
    assert found["Uid"].split() == [str(NOBODY)] * 4
    assert int(found["CapEff"], 16) == int(found["CapBnd"], 16) == 0
    assert found["NoNewPrivs"] == "1"
    mounts = service.inside("cat", "/proc/mounts", service="prometheus").stdout
    options = {line.split()[1]: line.split()[3].split(",") for line in mounts.splitlines()}
    assert "ro" in options["/"]
    assert "ro" in options["/etc/prometheus"]
    assert "rw" in options["/prometheus"]


def test_what_it_has_seen_outlasts_its_restart(prometheus: Prometheus, service: Service) -> None:
    seen = "min_over_time(timestamp(fovea_ready)[10m:1s])"
    wait_for(lambda: prometheus.query(seen))
    [first] = prometheus.query(seen)
    service.compose("docker compose --profile monitoring restart prometheus")
    wait_for(prometheus.ready)
    [later] = prometheus.query(seen)
    assert first["value"][1] == later["value"][1]


def test_it_reads_its_files_again_when_told(prometheus: Prometheus, service: Service) -> None:
    alerts = service.place.folder / "docker/monitoring/prometheus/alerts.yml"
    text = alerts.read_text()
    page = (ROOT / "docs" / "how-to" / "monitoring.md").read_text()
    [again] = re.findall(r"^(docker compose .* kill --signal SIGHUP prometheus)$", page, re.M)
    alerts.write_text(text.replace("FoveaSlow", "FoveaSlower"))
    service.compose(again)
    wait_for(lambda: "FoveaSlower" in prometheus.rules())
    alerts.write_text(text)
    service.compose(again)
    wait_for(lambda: "FoveaSlow" in prometheus.rules())


def test_an_alert_fires_while_a_model_is_broken(prometheus: Prometheus, service: Service) -> None:
    folder = f"/repository/{service.place.model}/1"
    restart = "docker compose --profile cpu restart cpu"
    service.compose(restart)
    wait_for(lambda: prometheus.query("fovea_ready == 1") and service.ready())
    # It may have fired while the model was being loaded: the rules are looked at after the scrape.
    wait_for(lambda: not prometheus.firing("FoveaModelUnavailable"))

    assert service.inside("mv", f"{folder}/card.json", f"{folder}/card.away").returncode == 0
    assert service.inside("sh", "-c", f"echo broken > {folder}/card.json").returncode == 0
    service.compose(restart)
    wait_for(lambda: prometheus.firing("FoveaModelUnavailable"))
    [alert] = prometheus.firing("FoveaModelUnavailable")
    assert (alert["instance"], alert["model"]) == ("fovea:8002", service.place.model)
    wait_for(lambda: prometheus.firing("FoveaNotReady"))
    # The server lives; a restart would mend nothing. Names of models are for who has a key.
    assert service.podman.ask("healthcheck", "run", service.container()).returncode == 0
    assert "1 model not ready" in httpx.get(f"{service.url}/v1/health/ready").text

    assert service.inside("mv", f"{folder}/card.away", f"{folder}/card.json").returncode == 0
    service.compose(restart)
    wait_for(lambda: not prometheus.firing("FoveaModelUnavailable"))
    wait_for(service.ready)


def test_a_server_that_dies_is_started_again_and_one_that_is_stopped_is_an_alert(
    prometheus: Prometheus, service: Service
) -> None:
    before = service.podman("inspect", "--format", "{{.State.Pid}}", service.container())
    os.kill(int(before), signal.SIGKILL)
    wait_for(lambda: not service.ready())
    wait_for(service.ready)
    assert service.podman("inspect", "--format", "{{.State.Pid}}", service.container()) != before
    wait_for(lambda: prometheus.targets() == {"fovea:8002": "up"})

    service.compose("docker compose --profile cpu stop cpu")
    wait_for(lambda: prometheus.firing("FoveaDown"))
    [alert] = prometheus.firing("FoveaDown")
    assert alert["instance"] == "fovea:8002"
    service.start()
    wait_for(lambda: not prometheus.firing("FoveaDown"))
