"""A real server that has served, and what its /metrics exposes."""

import shutil
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.built import build
from tests.conftest import DEMO
from tests.crops import write_crops
from tests.server.metrics.prometheus import MONITORING, Prometheus, shorten, wait_for
from tests.server.streams.conftest import write_moving_scene
from tests.serving import RunningServer, free_ports, start_server
from tests.system import program

from fovea_engines.build.plan import BuildPlan
from fovea_engines.repository.baseline import MIN_LIVE
from fovea_server.metrics.machine import _GPU_METRICS

EXPLICIT = ("--model-control-mode=explicit", "--load-model=*")


def predict(server: RunningServer, model: str = "digits") -> int:
    """The status of an image."""
    image = (DEMO / "scene-1.jpg").read_bytes()
    return httpx.post(server.predict_url(model), content=image).status_code


def control(server: RunningServer, action: str, model: str = "digits") -> None:
    """Load or unload a model."""
    url = f"{server.url}/v2/repository/models/{model}/{action}"
    assert httpx.post(url, json={}).status_code == 200


def scrape(server: RunningServer) -> str:
    answer = httpx.get(f"http://127.0.0.1:{server.metrics_port}/metrics")
    assert answer.status_code == 200
    return answer.text


def series(text: str) -> dict[str, list[dict[str, str]]]:
    """Metric, as it is written -> labels of each of its series."""
    found = defaultdict(list)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            # The parser ends the names of counters in _total, where Triton's do not.
            plain = sample.name.removesuffix("_total")
            name = plain if f"\n{plain}{{" in text or f"\n{plain} " in text else sample.name
            found[name].append(sample.labels)
    return found


@pytest.fixture(scope="module")
def cached_repository(demo_model, tmp_path_factory) -> Path:
    """Two versions of the demo model, whose answers are kept, built with images; and a stream."""
    repository = tmp_path_factory.mktemp("cached") / "repository"
    images = write_crops(repository.with_name("crops"), 50)
    build(BuildPlan(demo_model, "digits", repository, "onnxruntime", max_batch=4, images=images))
    shutil.copytree(repository / "digits" / "1", repository / "digits" / "2")
    with (repository / "digits" / "config.pbtxt").open("a") as config:
        config.write("\nresponse_cache { enable: true }\n")
    write_moving_scene(repository / "clip.avi", 6, 3)
    (repository / "streams.toml").write_text(
        f'[yard]\nsource = "{repository}/clip.avi"\nmodel = "digits"\nlines = ["a=0,0,1,1"]\n'
        'zones = ["all=0,0,1,0,1,1,0,1"]\n'
        'webhook = "http://127.0.0.1:1/"\n'
    )
    return repository


@pytest.fixture(scope="module")
def served(cached_repository, tmp_path_factory) -> Iterator[RunningServer]:
    """A server that has answered, refused, unloaded and loaded."""
    capture = ("--capture", str(tmp_path_factory.mktemp("kept")), "--capture-rule", "rate 100%")
    flags = (*EXPLICIT, "--cache-config=local,size=1048576", *capture)
    server = start_server(cached_repository, tmp_path_factory.mktemp("log"), flags)
    assert predict(server) == 200
    shadow = f"{server.url}/v1/models/digits/shadow"
    assert httpx.put(shadow, json={"version": 1, "share": 1}).status_code == 200
    wait_for(lambda: predict(server) == 200 and httpx.get(shadow).json()["report"])
    control(server, "unload")
    assert predict(server) == 503
    control(server, "load")
    for _ in range(MIN_LIVE):
        assert predict(server) == 200
    wait_for(lambda: 'fovea_streams{state="ended"}' in scrape(server))
    yield server
    server.process.kill()
    server.process.wait()


@pytest.fixture(scope="module")
def known(served) -> dict[str, set[str]]:
    """Metric -> names of its labels; those of GPUs from their table."""
    exposed = series(scrape(served))
    labels = {name: set().union(*found) for name, found in exposed.items()}
    gpus = {name: {"gpu_uuid"} for name in _GPU_METRICS}
    return {"up": set()} | gpus | labels


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory) -> Iterator[Callable[..., Prometheus]]:
    """Start Prometheus for a server's port, with short intervals; it is ended after the module.

    Without a key the server asks for none, but Prometheus wants to have one.
    """
    started: list[subprocess.Popen[str]] = []

    def start(metrics_port: int, key: str = "fov_any") -> Prometheus:
        executable = program("prometheus", package="prometheus")
        folder = tmp_path_factory.mktemp("prometheus")
        files = folder / "files"
        shutil.copytree(MONITORING / "prometheus", files)
        shorten(files, "200ms")
        config = files / "prometheus.yml"
        target = f"127.0.0.1:{metrics_port}"
        text = config.read_text().replace("fovea:8002", target)
        (files / "prometheus.key").write_text(key)
        config.write_text(text.replace("/keys/", f"{files}/"))
        [port] = free_ports(1)
        with (folder / "log").open("w") as log:
            process = subprocess.Popen(
                [
                    executable,
                    f"--config.file={config}",
                    f"--storage.tsdb.path={folder}/data",
                    f"--web.listen-address=127.0.0.1:{port}",
                ],
                stderr=log,
                text=True,
            )
        started.append(process)
        made = Prometheus(f"http://127.0.0.1:{port}")
        wait_for(lambda: process.poll() is None and made.ready())
        return made

    yield start
    for each in started:
        each.kill()
        each.wait()


@pytest.fixture(scope="session")
def scene() -> bytes:
    """An image of digits."""
    return (DEMO / "scene-1.jpg").read_bytes()
