"""The Dockerfiles as they are written: what they copy exists, and the images are closed."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from ruamel.yaml import YAML
from tests.docker.dockerfile import Instruction, all_of, in_context, read_dockerfile
from tools.locks import EXTRAS, GROUPS

pytestmark = pytest.mark.real


# What chooses the packages of an image -> the variable in the name of their file.
OPTIONS = {"EXTRAS": "{EXTRAS:-serve}", "TENSORRT": "TENSORRT"}


@pytest.fixture(scope="module", params=["cpu", "gpu"])
def dockerfile(request, root: Path) -> list[Instruction]:
    return read_dockerfile(root / f"docker/{request.param}.Dockerfile")


def test_every_source_that_is_copied_is_there(dockerfile: list[Instruction], root: Path) -> None:
    stages = [instruction.arguments[-1] for instruction in all_of(dockerfile, "FROM")]
    copies = all_of(dockerfile, "COPY")
    assert copies
    for copy in copies:
        *sources, _ = copy.arguments
        if (stage := copy.option("from")) is not None:
            maker = stages[: copy.stage].index(stage)
            made = " ".join(i.text for i in all_of(dockerfile, "RUN") if i.stage == maker)
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
    # Python's minor version and Debian's release: neither changes under a build.
    assert re.fullmatch(r"python:3\.\d+-slim-[a-z]+", all_of(dockerfile, "FROM")[-1].text)


def test_what_is_installed_is_known_by_its_hash(dockerfile: list[Instruction], root: Path) -> None:
    pip = [run.text for run in all_of(dockerfile, "RUN") if re.search(r"-m pip\b", run.text)]
    for command in pip:
        # The package itself, and what was compiled of a source with a hash.
        own = re.search(
            r" --no-deps (\S+ )*(\.|/src/wheels/(fovea_serve|pycuda)-\*\.whl)$", command
        )
        assert ("--require-hashes" in command) != bool(own), command
        assert "--no-build-isolation" in command or not command.endswith(" ."), command
    locks = {name for command in pip for name in re.findall(r"locks/([\w-]+)\.txt", command)}
    assert locks <= {*EXTRAS, *GROUPS}
    [given] = [i.text for i in all_of(dockerfile, "ARG") if i.text.partition("=")[0] in OPTIONS]
    name, _, default = given.partition("=")
    assert any(f"locks/${OPTIONS[name]}.txt" in command for command in pip)
    assert (root / f"locks/{default or 'serve'}.txt").is_file()


def test_the_list_of_its_parts_is_in_the_image(dockerfile: list[Instruction]) -> None:
    [moving] = [copy for copy in all_of(dockerfile, "COPY") if copy.arguments[0] == "/opt/fovea"]
    [listing] = [run for run in all_of(dockerfile, "RUN") if "cyclonedx-py" in run.text]
    assert "--output-file /opt/fovea/sbom.cdx.json /opt/fovea/bin/python" in listing.text
    assert dockerfile.index(listing) < dockerfile.index(moving)


def test_the_environment_moves_between_equal_pythons(dockerfile: list[Instruction]) -> None:
    [moving] = [copy for copy in all_of(dockerfile, "COPY") if copy.arguments[0] == "/opt/fovea"]
    bases = {i.arguments[-1]: i.arguments[0] for i in all_of(dockerfile, "FROM")}
    assert bases[moving.option("from")] == all_of(dockerfile, "FROM")[-1].text
    assert moving.arguments == ["/opt/fovea", "/opt/fovea"]


def test_it_does_not_run_as_root(dockerfile: list[Instruction]) -> None:
    last = max(instruction.stage for instruction in dockerfile)
    user = [i for i in all_of(dockerfile, "USER") if i.stage == last][-1]
    number = user.text.partition(":")[0]
    assert number.isdigit()
    assert int(number) > 0
    assert f"--uid {number}" in " ".join(i.text for i in all_of(dockerfile, "RUN"))
    assert dockerfile.index(user) < dockerfile.index(all_of(dockerfile, "ENTRYPOINT")[-1])


def test_it_listens_where_docker_can_reach_it(dockerfile: list[Instruction]) -> None:
    environment = all_of(dockerfile, "ENV")[-1].text
    assert "FOVEA_HTTP_ADDRESS=0.0.0.0" in environment
    assert "FOVEA_MODEL_REPOSITORY=/repository" in environment
    assert all_of(dockerfile, "VOLUME")[-1].text == "/repository"
    assert all_of(dockerfile, "EXPOSE")[-1].arguments == ["8000", "8001", "8002"]


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

    assert run() == "fovea serve"
    assert run("--model-repository=/models") == "fovea serve --model-repository=/models"
    assert run("doctor", "--json") == "fovea doctor --json"
    assert run("build", "a b.onnx") == "fovea build a b.onnx"


@pytest.fixture
def slim(root: Path, tmp_path: Path) -> Callable[..., Path]:
    """Removes from a virtual environment, whose packages it returns."""
    packages = tmp_path / "venv/lib/python3.13/site-packages"
    for name in ("numpy/_core/tests", "sympy/core/tests", "mpmath/tests", "plugin/tests"):
        (packages / name).mkdir(parents=True)
    strip = tmp_path / "bin/strip"
    strip.parent.mkdir()
    strip.symlink_to("/bin/true")
    path = f"{strip.parent}:{os.environ['PATH']}"

    def slim(*arguments: str) -> Path:
        command = [root / "docker/slim.sh", tmp_path / "venv", *arguments]
        subprocess.run(command, env=os.environ | {"PATH": path}, check=True)
        return packages

    return slim


@pytest.mark.parametrize(
    ("gpus", "left"),
    [
        ((), {"ptx", "sm75", "sm89", "sm100", "sm120"}),
        (("all",), {"ptx", "sm75", "sm89", "sm100", "sm120"}),
        (("89 100",), {"ptx", "sm89", "sm100"}),
        (("none",), set()),
    ],
)
def test_kernels_to_build_from_are_those_of_the_gpus(
    slim: Callable[..., Path], tmp_path: Path, gpus: tuple[str, ...], left: set[str]
) -> None:
    """Their names are those of the libraries of TensorRT 10.16."""
    libraries = tmp_path / "venv/lib/python3.13/site-packages/tensorrt_libs"
    libraries.mkdir()
    (libraries / "libnvinfer.so.11").touch()
    for name in ("ptx", "sm75", "sm89", "sm100", "sm120", "win", "win_sm89"):
        (libraries / f"libnvinfer_builder_resource_{name}.so.11.4.0").touch()
    slim(*gpus)
    names = {f"libnvinfer_builder_resource_{name}.so.11.4.0" for name in left}
    assert {each.name for each in libraries.iterdir()} == {"libnvinfer.so.11", *names}


def test_only_tests_of_named_packages_are_removed(slim: Callable[..., Path]) -> None:
    packages = slim()
    assert {str(each.relative_to(packages)) for each in packages.rglob("tests")} == {"plugin/tests"}


# The compose file of `fovea init`: valid, and its service is that of docker-compose.yml.


def test_it_follows_the_compose_specification_and_the_projects_own(root: Path) -> None:
    file = root / "server/fovea_server/cli/starter/compose.yaml"
    checker = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    subprocess.run([*checker, str(file)], check=True)
    [starter] = YAML(typ="safe").load(file)["services"].values()
    own = YAML(typ="safe").load(root / "docker-compose.yml")["services"]["cpu"]
    # The project also has monitoring, which finds the server by an alias.
    differing = {"profiles", "build", "pull_policy", "volumes", "networks"}
    assert {k: v for k, v in starter.items() if k not in differing} == {
        k: v for k, v in own.items() if k not in differing
    }
    # No registry has the image, and the commands that make it are those of docs/how-to/deploy.md.
    assert starter["pull_policy"] == "never"
    made = f"docker build -f {own['build']['dockerfile']} -t {own['image']} ."
    assert (root / own["build"]["dockerfile"]).is_file()
    deploy = (root / "docs/how-to/deploy.md").read_text()
    assert all(made in text for text in (file.read_text(), deploy))
    keys, volume = starter["volumes"]
    assert keys in own["volumes"]
    assert (volume["source"], volume["target"]) == ("./repository", "/repository")
    assert volume["read_only"]
