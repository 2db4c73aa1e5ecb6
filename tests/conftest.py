"""Fixtures shared by all tests, and what is said at the end of a run."""

import gc
import logging
import os
import re
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

import cv2
import pytest
from hypothesis import settings
from tests.asking import ask_patiently
from tests.built import build, forget_older
from tests.drawn import draw
from tests.engines.tiny import tiny_detector, tiny_network
from tests.serving import RunningServer, start_server
from tests.slimmed import share_slimmed
from tests.system import missing_packages
from tests.timed_briefly import time_briefly

from fovea_engines.build.plan import BuildPlan
from fovea_engines.repository.card import CARD_FILE, EngineCard
from fovea_server.cli.main import main

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
SHARED = ROOT.parent / "shared"
_SLOWEST = 10
# Where cores are measured, or chosen.
ALL_CORES = ("e2e/test_bench.py", "e2e/test_tune.py", "engines/backends", "server/bench/tune")
DEMO = ROOT / "server" / "fovea_server" / "demo"

Serve = Callable[..., RunningServer]


@pytest.fixture(scope="session")
def shared() -> Path:
    """Folder of real models and images that are not part of the project."""
    if not (SHARED / "models").is_dir():
        pytest.skip(f"real models and images are absent: {SHARED} is not there")
    return SHARED


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory) -> Path:
    """A folder that all processes of a run share."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


@pytest.fixture(scope="session", autouse=True)
def quick_builds(run_folder):
    """Simplify each graph once a run, as many builds are of one file; and time what is built
    for a moment.
    """
    share_slimmed(run_folder)
    time_briefly()


@pytest.fixture(scope="module", autouse=True)
def one_core(request):
    """A core for each process of a run, also for what it starts: runtimes that each take all cores
    only wait for one another, a quarter of the time.
    """
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    place = request.path.relative_to(TESTS).as_posix()
    if worker is None or not hasattr(os, "sched_setaffinity") or place.startswith(ALL_CORES):
        yield
        return
    before = os.sched_getaffinity(0)
    cores = sorted(before)
    os.sched_setaffinity(0, {cores[int(worker.removeprefix("gw")) % len(cores)]})
    yield
    os.sched_setaffinity(0, before)


@pytest.fixture(scope="session")
def demo_model() -> Path:
    """The ONNX file of the demo model, which every machine has."""
    return DEMO / "digits.onnx"


@pytest.fixture(scope="session")
def demo_repository(demo_model, tmp_path_factory) -> Path:
    """A repository with the demo engine; not to be written to, like the two below.

    It is of ONNX Runtime, which starts faster than OpenVINO: most servers of the tests serve it.
    """
    repository = tmp_path_factory.mktemp("demo") / "repository"
    build(BuildPlan(demo_model, "digits", repository, "onnxruntime"))
    return repository


@pytest.fixture(scope="session")
def demo_versions(demo_repository, demo_model, tmp_path_factory) -> Path:
    """A repository with the demo engine of ONNX Runtime, and as version 2 that of OpenVINO."""
    repository = tmp_path_factory.mktemp("versions") / "repository"
    shutil.copytree(demo_repository, repository)
    build(BuildPlan(demo_model, "digits", repository, "openvino"))
    return repository


@pytest.fixture(scope="session")
def demo_batches(demo_model, tmp_path_factory) -> Path:
    """A repository with the demo engine of ONNX Runtime, for up to 4 rows at once."""
    repository = tmp_path_factory.mktemp("batches") / "repository"
    build(BuildPlan(demo_model, "digits", repository, "onnxruntime", max_batch=4))
    return repository


@pytest.fixture(scope="session")
def demo_rect(demo_model, tmp_path_factory) -> Path:
    """A repository with the demo engine of ONNX Runtime, which takes several sizes."""
    repository = tmp_path_factory.mktemp("rect") / "repository"
    build(BuildPlan(demo_model, "digits", repository, "onnxruntime", rect=True))
    return repository


@pytest.fixture(scope="session")
def demo_server(demo_repository, tmp_path_factory) -> Iterator[RunningServer]:
    server = start_server(demo_repository, tmp_path_factory.mktemp("log"))
    yield server
    assert server.stop() == 0


@pytest.fixture
def serve(tmp_path) -> Iterator[Serve]:
    """Start servers with flags of your own; what still runs is stopped after the test."""
    started: list[RunningServer] = []

    def start(
        repository: Path,
        *flags: str,
        wait: bool = True,
        program: Sequence[str] | None = None,
    ) -> RunningServer:
        started.append(start_server(repository, tmp_path, flags, wait=wait, program=program))
        return started[-1]

    yield start
    for server in started:
        server.process.kill()
        server.process.wait()


@pytest.fixture(scope="session")
def scene() -> bytes:
    """An image of digits."""
    return (DEMO / "scene-1.jpg").read_bytes()


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory) -> Path:
    return tiny_detector(tmp_path_factory.mktemp("models") / "tiny.onnx")


@pytest.fixture(scope="session")
def network(tmp_path_factory) -> Path:
    """A network without a known head, of layers that INT8 can touch."""
    return tiny_network(tmp_path_factory.mktemp("models") / "network.onnx")


@pytest.fixture(scope="session")
def images(tmp_path_factory) -> Path:
    """A folder of eight images that tiny models calibrate on."""
    folder = tmp_path_factory.mktemp("images")
    for seed in range(8):
        cv2.imwrite(str(folder / f"{seed}.png"), draw(64 + 2 * seed, 80, seed))
    return folder


@pytest.fixture(scope="session")
def built_repository(tiny_model, tmp_path_factory) -> Path:
    """A repository with one version of the model "tiny"; not to be written to."""
    repository = tmp_path_factory.mktemp("built") / "repository"
    build(BuildPlan(tiny_model, "tiny", repository))
    return repository


@pytest.fixture(scope="session")
def card(built_repository) -> EngineCard:
    return EngineCard.read(built_repository / "tiny" / "1" / CARD_FILE)


@contextmanager
def _logging_kept() -> Iterator[None]:
    """Give logging its handlers and levels back: a command that serves sets up its own."""
    ours = (n for n in logging.root.manager.loggerDict if re.fullmatch("fovea_[a-z]+", n))
    names = (None, "httpx", *ours)
    levels = {name: logging.getLogger(name).level for name in names}
    root = logging.getLogger()
    handlers = list(root.handlers)
    yield
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
    for handler in set(root.handlers) - set(handlers):
        root.removeHandler(handler)
        handler.close()


@pytest.fixture
def logging_kept():
    with _logging_kept():
        yield


@pytest.fixture(scope="module", autouse=True)
def logging_of_the_module():
    """What a module leaves to logging, its fixtures included, no other one sees."""
    with _logging_kept():
        yield


@pytest.fixture
def fovea(monkeypatch, capsys, tmp_path, logging_kept):
    """Run the command, as it is typed in an empty folder: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["fovea", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            main()
        return (stopped.value.code or 0, *capsys.readouterr())

    return run


# A busy machine takes its time for an example.
settings.register_profile("usual", deadline=None)
settings.register_profile("check", settings.get_profile("usual"), max_examples=20, derandomize=True)
settings.load_profile("usual")


def pytest_configure() -> None:
    """Collect garbage rarely: simplifying a graph makes many objects, and each collection looks
    through all of them.
    """
    gc.set_threshold(50_000)
    ask_patiently()
    # A run in the background of a shell ignores Ctrl-C, and one of nohup ignores hang-ups; so would
    # all that it starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if "PYTEST_XDIST_WORKER" not in os.environ:
        forget_older()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    """Escape what UTF-8 cannot say: in it, reports and their logs pass between processes."""
    report = yield
    report.sections = [
        (title, text.encode(errors="backslashreplace").decode()) for title, text in report.sections
    ]
    return report


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take long, so that no process waits for the last one at the end."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


def pytest_collection_finish():
    """Leave modules and tests, which stay to the end, out of every collection of garbage."""
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the slowest files, and the system packages that a full run takes."""
    seconds: Counter[str] = Counter()
    for report in chain(*terminalreporter.stats.values()):
        if isinstance(report, pytest.TestReport):
            seconds[report.nodeid.partition("::")[0]] += report.duration
    if cache := getattr(terminalreporter.config, "cache", None):
        cache.set("fovea/seconds", dict(seconds.most_common()))
    if len(seconds) > _SLOWEST:
        terminalreporter.section("slowest files")
        for file, taken in seconds.most_common(_SLOWEST):
            terminalreporter.line(f"{taken:7.1f} s  {file}")
    skipped = terminalreporter.stats.get("skipped", [])
    packages = missing_packages(report.longrepr[2] for report in skipped)
    if packages:
        terminalreporter.section("skipped for want of system packages")
        terminalreporter.line(f"For a full run: apt-get install {' '.join(packages)}")
