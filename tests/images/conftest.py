"""Images, built for real. Run by `make test-images` and `make test-bare`, not by `make test`."""

import tempfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.docker.dockerfile import all_of, read_dockerfile
from tests.images.bases import (
    BUILD,
    ROOT,
    SLIM,
    WITH_COMPILERS,
    make_bare,
    make_stand_in,
    mounts,
)
from tests.images.podman import Podman, podman
from tests.images.service import Place, Service, make_place

FIGURES = pytest.StashKey[list[str]]()


@pytest.fixture(scope="session")
def figures(request: pytest.FixtureRequest) -> list[str]:
    """Lines for the end of the run."""
    lines: list[str] = request.config.stash.setdefault(FIGURES, [])
    return lines


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the figures that tests measured."""
    if lines := terminalreporter.config.stash.get(FIGURES, []):
        terminalreporter.section("images")
    for line in lines:
        terminalreporter.line(line)


def bases(name: str) -> list[str]:
    """The images that a Dockerfile starts from."""
    stages = all_of(read_dockerfile(ROOT / f"docker/{name}.Dockerfile"), "FROM")
    return [stage.arguments[0] for stage in stages]


@pytest.fixture(scope="session")
def bare() -> Iterator[Podman]:
    """Podman, with the image localhost/bare; skips where no container can be run."""
    with tempfile.TemporaryDirectory(prefix="fovea-images-") as folder, podman(Path(folder)) as run:
        # The release is the last word of the name: python:3.13-slim-trixie.
        make_bare(run, release=bases("cpu")[-1].rpartition("-")[2])
        tried = run.ask("run", "--rm", "--network", "none", "localhost/bare", "true")
        if tried.returncode:
            pytest.skip(f"containers cannot be run here: {tried.stderr.strip()}")
        yield run


# Image -> options of its build. TensorRT's libraries are on NVIDIA's own index.
OPTIONS = {"cpu": (), "gpu": ("--build-arg=TENSORRT=rtx",)}


@pytest.fixture(scope="session")
def images(request: pytest.FixtureRequest, bare: Podman) -> Iterator[dict[str, Future[str]]]:
    """The images that have tests in this run; one is built while another is already tried."""
    files = {item.path.name for item in request.session.items}
    wanted = [name for name in OPTIONS if any(f.startswith(f"test_{name}_") for f in files)]
    slim, *others = sorted({base for name in wanted for base in bases(name)}, key=is_full)
    make_stand_in(bare, slim, SLIM)
    for base in others:
        make_stand_in(bare, base, WITH_COMPILERS.format(slim=slim))

    def build(name: str) -> str:
        file, tag = f"--file={ROOT}/docker/{name}.Dockerfile", f"fovea-serve:{name}"
        bare(*BUILD, *mounts(bare.folder), *OPTIONS[name], file, "-t", tag, ROOT)
        return tag

    with ThreadPoolExecutor() as pool:
        yield {name: pool.submit(build, name) for name in wanted}


def is_full(base: str) -> bool:
    return "-slim-" not in base


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return make_place(tmp_path_factory.mktemp("place"))


@pytest.fixture(scope="module")
def image(images: dict[str, Future[str]]) -> str:
    """The image of the CPU."""
    return images["cpu"].result()


@pytest.fixture(scope="module")
def service(image: str, bare: Podman, place: Place, figures: list[str]) -> Iterator[Service]:
    """Running, with an engine that was built into its volume; every test leaves it so."""
    made = Service(bare, place)
    made.build()
    figures.append(f"CPU image: ready {made.start():.1f} s after `up`")
    yield made
    made.compose("docker compose --profile cpu --profile monitoring down")
