"""docker/gpu.Dockerfile beside docker/cpu.Dockerfile: alike, but for TensorRT."""

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tests.docker.dockerfile import Instruction, all_of, read_dockerfile


@pytest.fixture(scope="module")
def gpu(root: Path) -> list[Instruction]:
    return read_dockerfile(root / "docker/gpu.Dockerfile")


@pytest.fixture(scope="module")
def cpu(root: Path) -> list[Instruction]:
    return read_dockerfile(root / "docker/cpu.Dockerfile")


def test_both_are_built_alike(gpu: list[Instruction], cpu: list[Instruction]) -> None:
    done = {run.text for run in all_of(cpu, "RUN")}
    [installing] = [run for run in all_of(gpu, "RUN") if run.stage > 0 and run.text not in done]
    assert "[$TENSORRT,otel]" in installing.text
    [argument] = all_of(gpu, "ARG")
    assert argument.text == "TENSORRT=tensorrt"


def test_both_have_the_same_python_and_debian(
    gpu: list[Instruction], cpu: list[Instruction]
) -> None:
    compiling, *bases = [stage.arguments[0] for stage in all_of(gpu, "FROM")]
    assert {*bases} == {stage.arguments[0] for stage in all_of(cpu, "FROM")}
    assert compiling == bases[-1].replace("-slim", "")


def test_both_are_run_alike(gpu: list[Instruction], cpu: list[Instruction]) -> None:
    for word in ("USER", "WORKDIR", "VOLUME", "EXPOSE", "ENTRYPOINT"):
        assert all_of(gpu, word)[-1].text == all_of(cpu, word)[-1].text
    probes = [all_of(image, "HEALTHCHECK")[-1].text.partition("CMD ")[2] for image in (gpu, cpu)]
    assert probes[0] == probes[1]
    assert all_of(cpu, "ENV")[-1].text in all_of(gpu, "ENV")[-1].text
    assert "NVIDIA_DRIVER_CAPABILITIES=compute,utility" in all_of(gpu, "ENV")[-1].text


def test_what_is_installed_is_pinned(gpu: list[Instruction], root: Path) -> None:
    lines = (root / "constraints.txt").read_text().splitlines()
    pinned = {
        canonicalize_name(pin.name): pin.specifier
        for pin in (Requirement(line) for line in lines if line and not line.startswith("#"))
    }
    extra = tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    headers = [word for word in all_of(gpu, "RUN")[0].arguments if word.startswith("nvidia-")]
    assert headers
    for wanted in map(Requirement, [*extra["tensorrt"], *headers]):
        [version] = [pin.version for pin in pinned[canonicalize_name(wanted.name)]]
        assert wanted.specifier.contains(version), wanted
    installs = [
        run for run in all_of(gpu, "RUN") if " pip " in run.text and "wheel ." not in run.text
    ]
    assert sum("--constraint /src/constraints.txt" in run.text for run in installs) == 3
    assert all_of(gpu, "COPY")[0].arguments == ["constraints.txt", "./"]
