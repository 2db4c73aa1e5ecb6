"""docker/cpu.Dockerfile, carried out without Docker: the image serves."""

import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from .dockerfile import all_of, carry_out, command_of, copy, moved, read_dockerfile

# These change the image's user database and its root; they have no meaning outside an image.
NEEDS_THE_IMAGE = ("useradd",)


@dataclass(frozen=True)
class Image:
    """What the Dockerfile makes, laid out under a folder instead of an image's root."""

    root: Path
    entrypoint: list[str]
    healthcheck: list[str]
    environment: dict[str, str]


@pytest.fixture(scope="module")
def image(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    """Every COPY and RUN of the Dockerfile, carried out with its absolute paths moved."""
    place = tmp_path_factory.mktemp("image")
    dockerfile = read_dockerfile(root / "docker/cpu.Dockerfile")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL"))}
    environment["PIP_NO_COMPILE"] = "1"  # half of the installing time, and nothing checked here
    working = place
    for instruction in dockerfile:
        if instruction.word == "WORKDIR":
            working = place / instruction.text.lstrip("/")
            working.mkdir(parents=True, exist_ok=True)
        elif instruction.word == "COPY" and instruction.option("from") is None:
            *sources, target = instruction.arguments
            copy([root / source for source in sources], working / moved(target, place))
        elif instruction.word == "RUN":
            command = moved(command_of(instruction), place)
            if not command.startswith(NEEDS_THE_IMAGE):
                carry_out(command, working, environment)

    [entrypoint] = json.loads(all_of(dockerfile, "ENTRYPOINT")[-1].text)
    settings = dict(
        pair.split("=", 1) for pair in shlex.split(moved(all_of(dockerfile, "ENV")[-1].text, place))
    )
    path = settings["PATH"].replace("$PATH", f"{place}/usr/local/bin:{os.defpath}")
    health = all_of(dockerfile, "HEALTHCHECK")[-1].text.partition("CMD ")[2]
    yield Image(
        place,
        [f"{place}/usr/local/bin/{entrypoint}"],
        json.loads(health),
        settings | {"PATH": path, "HOME": str(place)},
    )
    shutil.rmtree(place)  # half a gigabyte, which pytest would keep for three runs


def test_the_installed_command_explains_itself(image: Image) -> None:
    shown = subprocess.run(
        [*image.entrypoint, "--help"],
        env=image.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert shown.returncode == 0, shown.stderr
    assert "repository" in shown.stdout


def test_it_builds_serves_is_healthy_and_stops(image: Image, root: Path, tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    demo = root / "server/fovea_server/demo/digits.onnx"
    building = [*image.entrypoint, "build", str(demo), "--repository", str(repository)]
    subprocess.run(building, cwd=tmp_path, env=image.environment, check=True, capture_output=True)
    port, grpc_port, metrics_port = _free_ports(3)
    # The server and its health check read the same environment.
    environment = image.environment | {"FOVEA_HTTP_PORT": port}
    # As the image's defaults, but for what they own: the folder, the address and the ports.
    ports = ["--grpc-port", grpc_port, "--metrics-port", metrics_port]
    served = [*image.entrypoint, f"--model-repository={repository}", "--host=127.0.0.1", *ports]

    def healthy() -> bool:
        # What docker runs is the image's own command: the first on its PATH.
        command = shutil.which(image.healthcheck[0], path=environment["PATH"])
        assert command is not None
        assert Path(command).is_relative_to(image.root)
        asked = [command, *image.healthcheck[1:]]
        return not subprocess.run(
            asked, env=environment, capture_output=True, check=False
        ).returncode

    assert not healthy()
    log = tmp_path / "log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            served, cwd=tmp_path, env=environment, stdout=output, stderr=output
        )
        try:
            _wait_until_live(f"http://127.0.0.1:{port}/v2/health/live", server)
            assert healthy(), log.read_text()
            server.send_signal(signal.SIGTERM)
            assert server.wait(timeout=30) == 0, log.read_text()
        finally:
            server.kill()
            server.wait()
    assert not healthy()


def _free_ports(count: int) -> list[str]:
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [str(probe.getsockname()[1]) for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def _wait_until_live(url: str, server: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until and server.poll() is None:
        try:
            with urlopen(url, timeout=5):
                return
        except (URLError, OSError):
            time.sleep(0.1)
