"""docker/gpu.Dockerfile beside docker/cpu.Dockerfile: alike, but for TensorRT."""

from pathlib import Path

import pytest
from tests.docker.dockerfile import Instruction, all_of, read_dockerfile

from fovea_engines.backends.tensorrt.caches import cache_folder

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def gpu(root: Path) -> list[Instruction]:
    return read_dockerfile(root / "docker/gpu.Dockerfile")


@pytest.fixture(scope="module")
def cpu(root: Path) -> list[Instruction]:
    return read_dockerfile(root / "docker/cpu.Dockerfile")


def test_both_are_built_alike(gpu: list[Instruction], cpu: list[Instruction]) -> None:
    done = {run.text for run in all_of(cpu, "RUN")}
    others = [run for run in all_of(gpu, "RUN") if run.stage > 0 and run.text not in done]
    compiled, installing, slimmed, folders = others
    assert slimmed.text == '/src/slim.sh /opt/fovea "$BUILDS_FOR"'
    # Beside the folders of the other, that of the cache, so that a volume there is the user's.
    assert folders.text.endswith(
        f" {Path('/tmp') / cache_folder().relative_to(Path.home()).parent}"
    )
    assert compiled.text.endswith("install --no-deps /src/wheels/pycuda-*.whl")
    assert '--requirement "locks/$TENSORRT.txt"' in installing.text
    # What makes wheels of TensorRT's sources has hashes, too.
    assert " PIP_BUILD_CONSTRAINT=locks/tensorrt-build.txt python -m pip " in installing.text
    given = [argument.text for argument in all_of(gpu, "ARG") if argument.stage > 0]
    assert given == ["TENSORRT=tensorrt", "BUILDS_FOR=all"]


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
