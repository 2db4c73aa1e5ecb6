"""docker-compose.yml, started by podman-compose on free ports of this machine."""

import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import httpx
from tests.conftest import SHARED
from tests.images.bases import ROOT
from tests.images.podman import Podman
from tests.serving import free_ports

DEMO = ROOT / "server/fovea_server/demo"
_PORTS = (8000, 8001, 8002, 9090)
_SECTION = re.search(
    r"^## Docker\n.*?^```bash\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S
)


def commands() -> list[str]:
    """The commands of the README's section on Docker."""
    assert _SECTION is not None, "the README has a section on Docker that begins with a block"
    return _SECTION[1].splitlines()


@dataclass(frozen=True)
class Place:
    """A folder with the compose file, and a model and an image under the names of the README.

    Where the real ones are not at hand these are the demo's, and so is the name of the model.

    Attributes:
        ports: port of the compose file -> free port of this machine.
    """

    folder: Path
    model: str
    image: str
    ports: dict[int, int]

    def adapted(self, text: str) -> str:
        """A text of the README for what is here."""
        text = re.sub(r"(?<=:)800\d", lambda named: str(self.ports[int(named[0])]), text)
        return text.replace("yolov8n", self.model).replace("bus.jpg", self.image)


def make_place(folder: Path) -> Place:
    """Fill a folder."""
    model, image = DEMO / "digits.onnx", DEMO / "scene-1.jpg"
    if SHARED.is_dir():
        model, image = SHARED / "models/yolov8n.onnx", SHARED / "data/bus.jpg"
    shutil.copy(model, folder)
    shutil.copy(image, folder)
    # The server's user, who is not the owner, reads them.
    folder.chmod(0o755)
    (folder / model.name).chmod(0o644)
    ports = dict(zip(_PORTS, free_ports(len(_PORTS)), strict=True))
    text = (ROOT / "docker-compose.yml").read_text()
    for port, free in ports.items():
        text = re.sub(rf'(?<=:){port}(?=:{port}")', str(free), text)
    (folder / "docker-compose.yml").write_text(text)
    return Place(folder, model.stem, image.name, ports)


@dataclass
class Service:
    """The service `cpu` of docker-compose.yml, with free ports of this machine."""

    podman: Podman
    place: Place

    def compose(self, command: str) -> str:
        """A command of the README."""
        file = f"{sys.executable} -m podman_compose --file {self.place.folder}/docker-compose.yml"
        line = self.place.adapted(command).replace("docker compose", file)
        return self.podman.shell(line, self.place.folder)

    def container(self, service: str = "cpu") -> str:
        """The id of a service's container that runs."""
        label = f"label=com.docker.compose.service={service}"
        return self.podman("ps", "--quiet", "--filter", label)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.place.ports[8000]}"

    def build(self) -> None:
        """Build the engine into the volume, as the README says."""
        [build] = [line for line in commands() if " build " in line]
        self.compose(build)

    def start(self) -> float:
        """`up`, as the README says, but in the background; seconds until it is ready."""
        [up] = [line for line in commands() if line.endswith(" up")]
        began = time.monotonic()
        self.compose(f"{up} --detach")
        while not self.ready():
            assert time.monotonic() < began + 600, self.podman("logs", self.container())
            time.sleep(0.05)
        return time.monotonic() - began

    def key(self, name: str = "owner") -> str:
        """A key that the first start has made."""
        return self.inside("cat", f"/keys/{name}.key").stdout.strip()

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.key()}"}

    def ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/v2/health/ready").status_code == 200
        except httpx.TransportError:
            return False

    def inside(self, *command: str, service: str = "cpu") -> subprocess.CompletedProcess[str]:
        """Run a command in a service's container."""
        return self.podman.ask("exec", self.container(service), *command)
