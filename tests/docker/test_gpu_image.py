"""docker/gpu.Dockerfile: what of it can be carried out without Docker, a GPU and NVIDIA's index."""

import os
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from .dockerfile import Instruction, all_of, carry_out, command_of, copy, moved, read_dockerfile

# Command -> why it is not carried out here.
NOT_HERE = {
    "apt-get": "it changes the system",
    "useradd": "it changes the image's user database and its root",
    "/opt/fovea/bin/python -m pip install": "TensorRT's libraries are on NVIDIA's index alone",
}
CUDA = Path("/usr/local/cuda")


@pytest.fixture(scope="module")
def gpu(root: Path) -> list[Instruction]:
    return read_dockerfile(root / "docker/gpu.Dockerfile")


@pytest.fixture(scope="module")
def cpu(root: Path) -> list[Instruction]:
    return read_dockerfile(root / "docker/cpu.Dockerfile")


def test_every_command_is_carried_out_or_cannot_be(
    gpu: list[Instruction], cpu: list[Instruction]
) -> None:
    done = {run.text for run in all_of(cpu, "RUN")}
    left = [run for run in all_of(gpu, "RUN") if run.stage > 0 and run.text not in done]
    assert all(command_of(run).startswith(tuple(NOT_HERE)) for run in left), left


def test_the_two_images_are_run_alike(gpu: list[Instruction], cpu: list[Instruction]) -> None:
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
    for wanted in map(Requirement, extra["tensorrt"]):
        [version] = [pin.version for pin in pinned[canonicalize_name(wanted.name)]]
        assert wanted.specifier.contains(version), wanted
    installs = [
        run for run in all_of(gpu, "RUN") if " pip " in run.text and "wheel ." not in run.text
    ]
    assert sum("--constraint /src/constraints.txt" in run.text for run in installs) == 2
    assert all_of(gpu, "COPY")[0].arguments == ["constraints.txt", "./"]


@pytest.fixture
def stage(gpu: list[Instruction], root: Path, tmp_path: Path) -> Callable[..., Path]:
    """Carry out the first stage under a folder, with words of its commands replaced."""

    def run(*replaced: tuple[str, str]) -> Path:
        working = tmp_path / "src"
        working.mkdir()
        environment = os.environ | {
            "HOME": str(tmp_path),
            "PATH": f"{CUDA}/bin:{os.environ['PATH']}",
        }
        for instruction in gpu:
            if instruction.stage == 0 and instruction.word == "COPY":
                copy([root / instruction.arguments[0]], working)
            elif instruction.stage == 0 and instruction.word == "RUN":
                command = moved(command_of(instruction), tmp_path)
                for old, new in replaced:
                    command = command.replace(old, new)
                if not command.startswith(tuple(NOT_HERE)):
                    carry_out(command, working, environment)
        return working / "wheels"

    return run


def test_pycuda_can_be_had_and_is_configured(stage: Callable[..., Path]) -> None:
    wheels = stage(("pip wheel", "pip download"), ("--wheel-dir", "--dest"))
    assert [file.name.partition("-")[0] for file in wheels.iterdir()] == ["pycuda"]


@pytest.mark.timeout(900)
def test_the_wheel_of_pycuda_is_built(stage: Callable[..., Path]) -> None:
    # Two minutes of a compiler's work, on a machine that is like the stage.
    if not (CUDA / "lib64/stubs/libcuda.so").is_file():
        pytest.skip(f"{CUDA} is not a CUDA toolkit with the driver's stub to link with")
    [wheel] = stage().glob("pycuda-*.whl")
    assert any(name.startswith("pycuda/_driver.") for name in zipfile.ZipFile(wheel).namelist())
