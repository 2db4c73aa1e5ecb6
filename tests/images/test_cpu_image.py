"""docker/cpu.Dockerfile and docker-compose.yml, built and run as the README says."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from tests.images.conftest import ROOT, bases
from tests.images.load import Load
from tests.images.podman import Podman
from tests.images.service import DEMO, Service
from tests.serving import free_ports

pytestmark = pytest.mark.images

USER = 10001


@pytest.mark.timeout(1800)
def test_its_size_is_known(image: str, bare: Podman, figures: list[str]) -> None:
    size, base = bare.size_mb(image), bare.size_mb(bases("cpu")[-1])
    figures.append(f"CPU image: {size - base} MB over its base; the stand-in base has {base} MB")
    assert size > base


def test_doctor_finds_nothing_to_mend_in_it(image: str, bare: Podman) -> None:
    bare("run", "--rm", "--read-only", "--shm-size=1g", image, "doctor")


def test_it_has_what_traces_need(image: str, bare: Podman) -> None:
    bare(
        "run", "--rm", "--entrypoint=python", image, "-c", "import fovea_server.observability.otel"
    )


@pytest.mark.timeout(600)
def test_nothing_is_missing_that_builds_and_evaluations_need(
    image: str, bare: Podman, tmp_path: Path
) -> None:
    found = {
        "id": 1,
        "image_id": 1,
        "category_id": 1,
        "bbox": [174, 310, 41, 98],
        "area": 4018,
        "iscrowd": 0,
    }
    labels = {
        "images": [{"id": 1, "file_name": "scene-1.jpg", "width": 640, "height": 480}],
        "annotations": [found],
        "categories": [{"id": n, "name": str(n)} for n in range(10)],
    }
    (tmp_path / "labels.json").write_text(json.dumps(labels))
    tmp_path.chmod(0o755)
    volumes = ("-v", f"{DEMO}:/demo:ro", "-v", f"{tmp_path}:/labels:ro", "-v", "other:/repository")
    options = ("run", "--rm", "--read-only", "--tmpfs=/tmp", *volumes, image)
    data = ("--data", "/labels/labels.json", "--images", "/demo")
    build = ("build", "/demo/digits.onnx", "--repository", "/repository", "--precision", "int8")
    bare(*options, *build, "--calibration", "/demo", *data, "--max-drop", "1")
    bare(*options, "diff", "/demo/digits.onnx", "/demo/digits.onnx", "--json")


def test_the_list_of_its_parts_is_in_it(image: str, bare: Podman) -> None:
    listed = bare("run", "--rm", "--entrypoint=cat", image, "/opt/fovea/sbom.cdx.json")
    bom = json.loads(listed)
    assert bom["bomFormat"] == "CycloneDX"
    parts = {part["name"]: part["version"] for part in bom["components"]}
    python = ("run", "--rm", "--entrypoint=python", image)
    code = "from importlib import metadata; print(metadata.version('onnxruntime'))"
    assert parts["onnxruntime"] == bare(*python, "-c", code).strip()
    assert {"fovea-serve", "numpy", "uvicorn", "opentelemetry-sdk"} <= parts.keys()
    # What made the image is not in it.
    assert not {"pip", "hatchling", "cyclonedx-bom"} & parts.keys()


@pytest.mark.timeout(600)
def test_it_runs_without_rights_on_a_read_only_root(service: Service) -> None:
    status = dict(
        line.split(":\t")
        for line in service.inside("cat", "/proc/1/status").stdout.splitlines()
        if ":\t" in line
    )
    assert status["Uid"].split() == status["Gid"].split() == [str(USER)] * 4
    assert int(status["CapEff"], 16) == int(status["CapBnd"], 16) == 0
    assert status["NoNewPrivs"] == "1"
    assert "Read-only file system" in service.inside("touch", "/opt/fovea/written").stderr
    assert service.inside("touch", "/tmp/written", "/repository/written").returncode == 0


def test_the_blocks_of_the_readme_find_boxes_over_the_published_ports(service: Service) -> None:
    place = service.place
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)
    assert {"fovea_client", "tritonclient.grpc"} <= set(
        re.findall(r"(?:from|import) (\S+)", "".join(blocks))
    )
    for block in blocks:
        # Other clients than ours send the key as a header.
        sent = f'headers={{"x-api-key": "{service.key()}"}}, parameters='
        command = [sys.executable, "-c", place.adapted(block).replace("parameters=", sent)]
        environment = {**os.environ, "FOVEA_API_KEY": service.key()}
        shown = subprocess.check_output(command, cwd=place.folder, text=True, env=environment)
        assert len(shown.splitlines()) >= 3, shown
    metrics = httpx.get(
        f"http://127.0.0.1:{place.ports[8002]}/metrics", headers=service.headers
    ).text
    assert f'nv_inference_request_success{{model="{place.model}"' in metrics


def test_the_first_start_made_keys_that_hold(service: Service) -> None:
    predict = f"{service.url}/v1/models/{service.place.model}/predict"
    image = (service.place.folder / service.place.image).read_bytes()
    assert httpx.post(predict, content=image).status_code == 401
    assert httpx.post(predict, content=image, headers=service.headers).status_code == 200
    own = httpx.get(f"{service.url}/v1/keys/self", headers=service.headers).json()
    assert own["scopes"] == ["control", "metrics", "predict"]
    metrics = f"http://127.0.0.1:{service.place.ports[8002]}/metrics"
    of_prometheus = {"x-api-key": service.key("prometheus")}
    assert httpx.get(metrics).status_code == 401
    assert httpx.get(metrics, headers=of_prometheus).status_code == 200
    assert httpx.post(predict, content=image, headers=of_prometheus).status_code == 403
    modes = service.inside("stat", "--format=%a %n", "/keys/owner.key", "/keys/keys.json").stdout
    assert [line.split()[0] for line in modes.splitlines()] == ["600", "600"]


def test_the_images_health_check_is_asked(service: Service) -> None:
    # Without systemd nobody asks at the interval, so this does.
    assert service.podman.ask("healthcheck", "run", service.container()).returncode == 0
    probe = json.loads(
        service.podman("inspect", "--format", "{{json .Config.Healthcheck}}", service.container())
    )
    assert probe["Test"][0] in ("CMD", "CMD-SHELL")


@pytest.mark.timeout(600)
def test_sigterm_under_load_loses_nothing_and_the_volume_is_served_again(
    service: Service, figures: list[str]
) -> None:
    place = service.place
    container = service.container()
    image = (place.folder / place.image).read_bytes()
    with Load(place.ports[8000], place.model, image, service.key()) as load:
        load.wait_for(20)
        service.podman("stop", "--time", "40", container)
    code = service.podman("inspect", "--format", "{{.State.ExitCode}}", container)
    assert (load.counts["lost"], code) == (0, "0"), load.counts
    figures.append(f"CPU image: SIGTERM under load, {dict(load.counts)}")
    assert not service.ready()
    figures.append(f"CPU image: ready {service.start():.1f} s after the second `up`")
    models = httpx.post(f"{service.url}/v2/repository/index", headers=service.headers).json()
    assert [(model["name"], model["state"]) for model in models] == [(place.model, "READY")]


def test_a_repository_that_may_not_be_written_is_served(service: Service, image: str) -> None:
    [port] = free_ports(1)
    options = ("--detach", "--read-only", "--tmpfs=/tmp", f"--publish={port}:8000")
    run = service.podman("run", *options, "-v", "fovea_repository:/repository:ro", image)
    until = time.monotonic() + 600
    while service.podman.ask("healthcheck", "run", run).returncode:
        assert time.monotonic() < until, service.podman("logs", run)
    asked = f"http://127.0.0.1:{port}/v2/models/{service.place.model}/ready"
    while httpx.get(asked).status_code != 200:
        assert time.monotonic() < until, service.podman("logs", run)
        time.sleep(0.05)
    service.podman("rm", "--force", "--time", "0", run)
