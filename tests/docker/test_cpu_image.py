"""docker/cpu.Dockerfile, without Docker: what it copies exists, and what it runs works."""

import fnmatch
import json
import os
import re
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

# These change the image's user database and its root; they have no meaning outside an image.
NEEDS_THE_IMAGE = ("useradd",)


@dataclass(frozen=True)
class Instruction:
    """One instruction; `stage` counts the FROM lines before it, from 0."""

    stage: int
    word: str
    text: str

    @property
    def arguments(self) -> list[str]:
        return [word for word in shlex.split(self.text) if not word.startswith("--")]

    def option(self, name: str) -> str | None:
        found = re.search(rf"--{name}=(\S+)", self.text)
        return found and found[1]


@pytest.fixture(scope="module")
def dockerfile(root: Path) -> list[Instruction]:
    text = (root / "docker/cpu.Dockerfile").read_text()
    text = re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ")
    stage, found = -1, []
    for line in filter(str.strip, text.splitlines()):
        word, _, rest = line.partition(" ")
        stage += word == "FROM"
        found.append(Instruction(stage, word, " ".join(rest.split())))
    return found


def all_of(dockerfile: list[Instruction], word: str) -> list[Instruction]:
    return [instruction for instruction in dockerfile if instruction.word == word]


def in_context(root: Path, path: str) -> bool:
    """Whether .dockerignore lets a path through: the last rule that matches decides."""
    kept = True
    for line in (root / ".dockerignore").read_text().splitlines():
        rule = line.removeprefix("!")
        parts = [path, *map(str, Path(path).parents)]
        if line and not line.startswith("#") and any(fnmatch.fnmatch(p, rule) for p in parts):
            kept = line.startswith("!")
    return kept


def test_every_source_that_is_copied_is_there(dockerfile: list[Instruction], root: Path) -> None:
    stages = [instruction.arguments[-1] for instruction in all_of(dockerfile, "FROM")]
    made = " ".join(i.text for i in all_of(dockerfile, "RUN") if i.stage == 0)
    copies = all_of(dockerfile, "COPY")
    assert copies
    for copy in copies:
        *sources, _ = copy.arguments
        if (stage := copy.option("from")) is not None:
            assert stage in stages[: copy.stage]
            assert all(source in made for source in sources)
            continue
        for source in sources:
            assert (root / source).exists(), f"COPY {source}: there is no such file"
            assert in_context(root, source), f"COPY {source}: .dockerignore keeps it out"


def test_the_context_carries_nothing_else(root: Path) -> None:
    for path in (
        ".git/config",
        "tests/conftest.py",
        ".venv/bin/python",
        "repository/m/1/model.xml",
    ):
        assert not in_context(root, path)


def test_the_final_stage_builds_nothing(dockerfile: list[Instruction]) -> None:
    last = max(instruction.stage for instruction in dockerfile)
    commands = " ".join(i.text for i in all_of(dockerfile, "RUN") if i.stage == last)
    assert last > 0
    assert not re.search(r"\b(apt|apt-get|apk|pip|gcc|make|curl|wget)\b", commands)
    assert all_of(dockerfile, "FROM")[-1].text.endswith("-slim")


def test_it_does_not_run_as_root(dockerfile: list[Instruction]) -> None:
    user = [i for i in all_of(dockerfile, "USER") if i.stage == 1][-1]
    number = user.text.partition(":")[0]
    assert number.isdigit()
    assert int(number) > 0
    assert f"--uid {number}" in " ".join(i.text for i in all_of(dockerfile, "RUN"))
    assert dockerfile.index(user) < dockerfile.index(all_of(dockerfile, "ENTRYPOINT")[-1])


def test_the_entrypoint_takes_options_and_subcommands(root: Path, tmp_path: Path) -> None:
    echo = tmp_path / "fovea"
    echo.write_text('#!/bin/sh\necho fovea "$@"\n')
    echo.chmod(0o755)

    def run(*arguments: str) -> str:
        command = [str(root / "docker/entrypoint.sh"), *arguments]
        environment = {"PATH": f"{tmp_path}:{os.defpath}"}
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, check=True
        ).stdout.strip()

    assert run() == "fovea serve /repository --host 0.0.0.0"
    assert run("--threads", "4") == "fovea serve /repository --host 0.0.0.0 --threads 4"
    assert run("doctor", "--json") == "fovea doctor --json"
    assert run("build", "a b.onnx") == "fovea build a b.onnx"


@dataclass(frozen=True)
class Image:
    """What the Dockerfile makes, laid out under a folder instead of an image's root."""

    root: Path
    entrypoint: list[str]
    healthcheck: list[str]
    environment: dict[str, str]


@pytest.fixture(scope="module")
def image(
    dockerfile: list[Instruction], root: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Image]:
    """Every COPY and RUN of the Dockerfile, carried out with its absolute paths moved."""
    place = tmp_path_factory.mktemp("image")

    def moved(text: str) -> str:
        return re.sub(r"(?<![\w./])/(?=(src|opt|usr/local)/)", f"{place}/", text)

    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL"))}
    environment["PIP_NO_COMPILE"] = "1"  # half of the installing time, and nothing checked here
    working = place
    for instruction in dockerfile:
        if instruction.word == "WORKDIR":
            working = place / instruction.text.lstrip("/")
            working.mkdir(parents=True, exist_ok=True)
        elif instruction.word == "COPY" and instruction.option("from") is None:
            *sources, target = instruction.arguments
            _copy([root / source for source in sources], working / moved(target))
        elif instruction.word == "RUN":
            command = moved(re.sub(r"--mount=\S+ ", "", instruction.text))
            if not command.startswith(NEEDS_THE_IMAGE):
                done = subprocess.run(
                    ["sh", "-c", command],
                    cwd=working,
                    env=environment,
                    capture_output=True,
                    text=True,
                    check=False,
                )
                assert done.returncode == 0, f"RUN {command}\n{done.stdout}{done.stderr}"

    [entrypoint] = json.loads(all_of(dockerfile, "ENTRYPOINT")[-1].text)
    settings = dict(
        pair.split("=", 1) for pair in shlex.split(moved(all_of(dockerfile, "ENV")[-1].text))
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


def _copy(sources: list[Path], target: Path) -> None:
    for source in sources:
        if source.is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(source, target, ignore=ignored)
        elif target.is_dir():
            shutil.copy(source, target)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)


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
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    health = [word.replace(":8000/", f":{port}/") for word in image.healthcheck]
    # As the entrypoint's default, but for the folder and the port, which the image owns.
    served = [*image.entrypoint, "serve", str(repository), "--host", "127.0.0.1", "--port", port]

    def healthy() -> bool:
        # What docker runs is the image's own python: the first on its PATH.
        python = shutil.which(health[0], path=image.environment["PATH"])
        assert python is not None
        assert Path(python).is_relative_to(image.root)
        asked = [python, *health[1:]]
        return not subprocess.run(
            asked, env=image.environment, stderr=subprocess.DEVNULL, check=False
        ).returncode

    assert not healthy()
    log = tmp_path / "log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            served, cwd=tmp_path, env=image.environment, stdout=output, stderr=output
        )
        try:
            _wait_until_live(f"http://127.0.0.1:{port}/v2/health/live", server)
            # Live comes before ready: docker asks again and again as well.
            assert any(healthy() for _ in range(30)), log.read_text()
            server.send_signal(signal.SIGTERM)
            assert server.wait(timeout=30) == 0, log.read_text()
        finally:
            server.kill()
            server.wait()
    assert not healthy()


def _wait_until_live(url: str, server: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until and server.poll() is None:
        try:
            with urlopen(url, timeout=5):
                return
        except (URLError, OSError):
            time.sleep(0.1)
