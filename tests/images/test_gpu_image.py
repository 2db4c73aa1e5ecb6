"""docker/gpu.Dockerfile, built without a GPU, and with TensorRT for RTX instead of TensorRT.

Not shown here: TensorRT itself, whose libraries come from NVIDIA's own index; the container
toolkit; anything that runs on a GPU.
"""

from concurrent.futures import Future

import pytest
from tests.images.conftest import ROOT, bases
from tests.images.podman import Podman

pytestmark = pytest.mark.images

DEMO = ROOT / "server/fovea_server/demo"


@pytest.fixture(scope="module")
def image(images: dict[str, Future[str]]) -> str:
    return images["gpu"].result()


@pytest.mark.timeout(1800)
def test_its_size_is_known(image: str, bare: Podman, figures: list[str]) -> None:
    size, base = bare.size_mb(image), bare.size_mb(bases("gpu")[-1])
    figures.append(f"GPU image with TensorRT for RTX: {size - base} MB over its base")
    assert size > base


def test_doctor_looks_around_in_it(image: str, bare: Podman) -> None:
    doctor = bare.ask("run", "--rm", "--shm-size=1g", "--read-only", image, "doctor")
    assert "tensorrt-rtx 1." in doctor.stdout, doctor.stdout + doctor.stderr
    assert "none" in next(line for line in doctor.stdout.splitlines() if " GPU " in line)
    assert "pycuda 20" in doctor.stdout


def test_pycuda_wants_the_hosts_driver_and_nothing_else(image: str, bare: Podman) -> None:
    python = ("run", "--rm", "--entrypoint=python", image)
    loaded = bare.ask(*python, "-c", "import pycuda.driver")
    assert "libcuda.so.1: cannot open shared object file" in loaded.stderr


def test_it_builds_an_engine_for_other_machines(image: str, bare: Podman) -> None:
    volume = ("-v", f"{DEMO}:/demo:ro", "-v", "engines:/repository")
    command = ("build", "/demo/digits.onnx", "--repository", "/repository")
    backend = ("--backend", "tensorrt-rtx", "--precision", "fp16", "--compute-capability", "89")
    bare("run", "--rm", "--read-only", "--tmpfs=/tmp", *volume, image, *command, *backend)
    told = bare("run", "--rm", *volume, image, "inspect", "/repository", "--json")
    assert "tensorrt-rtx" in told
    assert '"digits"' in told
