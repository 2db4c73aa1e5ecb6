"""docker/cpu.Dockerfile and docker-compose.yml, built and run as the README says."""

import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from tests.conftest import SHARED
from tests.images.conftest import ROOT, bases
from tests.images.load import Load
from tests.images.podman import Podman
from tests.serving import free_ports

DEMO = ROOT / "server/fovea_server/demo"
SECTION = re.search(
    r"^## Docker\n.*?^```bash\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S
)
USER = 10001


@dataclass(frozen=True)
class Place:
    """A folder with a model and an image under the names of the README.

    Where the real ones are not at hand these are the demo's, and so is the name of the model.
    """

    folder: Path
    model: str
    image: str
    ports: dict[int, int]

    def adapted(self, text: str) -> str:
        """A text of the README for what is here."""
        text = re.sub(r"(?<=:)800\d", lambda named: str(self.ports[int(named[0])]), text)
        return text.replace("yolov8n", self.model).replace("bus.jpg", self.image)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    folder = tmp_path_factory.mktemp("place")
    model, image = DEMO / "digits.onnx", DEMO / "scene-1.jpg"
    if SHARED.is_dir():
        model, image = SHARED / "models/yolov8n.onnx", SHARED / "data/bus.jpg"
    shutil.copy(model, folder)
    shutil.copy(image, folder)
    # The server's user, who is not the owner, reads them.
    folder.chmod(0o755)
    (folder / model.name).chmod(0o644)
    ports = dict(zip((8000, 8001, 8002), free_ports(3), strict=True))
    return Place(folder, model.stem, image.name, ports)


@dataclass
class Service:
    """The service `cpu` of docker-compose.yml, with free ports of the host instead of its own."""

    podman: Podman
    place: Place

    def compose(self, command: str) -> str:
        """A command of the README."""
        file = f"{sys.executable} -m podman_compose --file {self.place.folder}/docker-compose.yml"
        line = self.place.adapted(command).replace("docker compose", file)
        return self.podman.shell(line, self.place.folder)

    @property
    def container(self) -> str:
        return self.podman("ps", "--quiet", "--filter", "label=com.docker.compose.service=cpu")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.place.ports[8000]}"

    def start(self) -> float:
        """`up`, as the README says, but in the background; seconds until it is ready."""
        [up] = [line for line in commands() if line.endswith(" up")]
        began = time.monotonic()
        self.compose(f"{up} --detach")
        while not self.ready():
            assert time.monotonic() < began + 120, self.podman("logs", self.container)
            time.sleep(0.05)
        return time.monotonic() - began

    def ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/v2/health/ready").status_code == 200
        except httpx.TransportError:
            return False

    def inside(self, *command: str) -> subprocess.CompletedProcess[str]:
        return self.podman.ask("exec", self.container, *command)


def commands() -> list[str]:
    assert SECTION is not None, "the README has a section on Docker that begins with a block"
    return SECTION[1].splitlines()


@pytest.fixture(scope="module")
def image(images: dict[str, Future[str]]) -> str:
    return images["cpu"].result()


@pytest.fixture(scope="module")
def service(image: str, bare: Podman, place: Place, figures: list[str]) -> Iterator[Service]:
    """Running, with an engine that was built into its volume; every test leaves it so."""
    text = (ROOT / "docker-compose.yml").read_text()
    text = re.sub(r'"(\d+):(?=\d+")', lambda port: f'"{place.ports[int(port[1])]}:', text)
    (place.folder / "docker-compose.yml").write_text(text)
    made = Service(bare, place)
    [build] = [line for line in commands() if " build " in line]
    made.compose(build)
    figures.append(f"CPU image: ready {made.start():.1f} s after `up`")
    yield made
    made.compose("docker compose --profile cpu down")


@pytest.mark.timeout(1800)
def test_its_size_is_known(image: str, bare: Podman, figures: list[str]) -> None:
    size, base = bare.size_mb(image), bare.size_mb(bases("cpu")[-1])
    figures.append(f"CPU image: {size - base} MB over its base; the stand-in base has {base} MB")
    assert size > base


def test_doctor_finds_nothing_to_mend_in_it(image: str, bare: Podman) -> None:
    bare("run", "--rm", "--read-only", "--shm-size=1g", image, "doctor")


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
        command = [sys.executable, "-c", place.adapted(block)]
        shown = subprocess.check_output(command, cwd=place.folder, text=True)
        assert len(shown.splitlines()) >= 3, shown
    metrics = httpx.get(f"http://127.0.0.1:{place.ports[8002]}/metrics").text
    assert f'nv_inference_request_success{{model="{place.model}"' in metrics


def test_the_images_health_check_is_asked(service: Service) -> None:
    # Without systemd nobody asks at the interval, so this does.
    assert service.podman.ask("healthcheck", "run", service.container).returncode == 0
    probe = json.loads(
        service.podman("inspect", "--format", "{{json .Config.Healthcheck}}", service.container)
    )
    assert probe["Test"][0] in ("CMD", "CMD-SHELL")


@pytest.mark.timeout(600)
def test_sigterm_under_load_loses_nothing_and_the_volume_is_served_again(
    service: Service, figures: list[str]
) -> None:
    place = service.place
    container = service.container
    with Load(place.ports[8000], place.model, (place.folder / place.image).read_bytes()) as load:
        load.wait_for(20)
        service.podman("stop", "--time", "40", container)
    code = service.podman("inspect", "--format", "{{.State.ExitCode}}", container)
    assert (load.counts["lost"], code) == (0, "0"), load.counts
    figures.append(f"CPU image: SIGTERM under load, {dict(load.counts)}")
    assert not service.ready()
    figures.append(f"CPU image: ready {service.start():.1f} s after the second `up`")
    models = httpx.post(f"{service.url}/v2/repository/index").json()
    assert [(model["name"], model["state"]) for model in models] == [(place.model, "READY")]


def test_a_repository_that_may_not_be_written_is_served(service: Service, image: str) -> None:
    [port] = free_ports(1)
    options = ("--detach", "--read-only", "--tmpfs=/tmp", f"--publish={port}:8000")
    run = service.podman("run", *options, "-v", "fovea_repository:/repository:ro", image)
    until = time.monotonic() + 120
    while service.podman.ask("healthcheck", "run", run).returncode:
        assert time.monotonic() < until, service.podman("logs", run)
    asked = f"http://127.0.0.1:{port}/v2/models/{service.place.model}/ready"
    while httpx.get(asked).status_code != 200:
        assert time.monotonic() < until, service.podman("logs", run)
        time.sleep(0.05)
    service.podman("rm", "--force", "--time", "0", run)
