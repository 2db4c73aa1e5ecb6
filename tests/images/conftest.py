"""Images, built for real. Run by `make test-images` and `make test-bare`, not by `make test`."""

import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from tests.docker.dockerfile import all_of, read_dockerfile

from .bases import BUILD, SLIM, WITH_COMPILERS, make_bare, make_stand_in, mounts
from .podman import Podman, podman

ROOT = Path(__file__).resolve().parents[2]
FIGURES = pytest.StashKey[list[str]]()


@pytest.fixture(scope="session")
def figures(request: pytest.FixtureRequest) -> list[str]:
    """Lines for the end of the run."""
    lines: list[str] = request.config.stash.setdefault(FIGURES, [])
    return lines


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what was measured."""
    terminalreporter.section("images")
    for line in terminalreporter.config.stash.get(FIGURES, ["nothing was measured"]):
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


@pytest.fixture(scope="session")
def build_image(bare: Podman) -> Callable[..., str]:
    """Build docker/NAME.Dockerfile over stand-ins of its bases; the image's name."""

    @cache
    def base(name: str) -> None:
        slim = bases("cpu")[-1]
        if name != slim:
            base(slim)
        make_stand_in(bare, name, SLIM if name == slim else WITH_COMPILERS.format(slim=slim))

    def build(name: str, *options: str) -> str:
        for start in bases(name):
            base(start)
        tag = f"fovea-serve:{name}"
        file = f"--file={ROOT}/docker/{name}.Dockerfile"
        bare(*BUILD, *mounts(bare.folder), *options, file, "-t", tag, ROOT)
        return tag

    return build
