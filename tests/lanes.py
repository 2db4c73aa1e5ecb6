"""Sorts the files of tests into lanes, by their folders and by the fixtures that they use.

`make check` runs the quick ones, `make test` all that need nothing foreign, and `make test-real`
the others: those with the real models of `shared`, and with the programs of other people.
"""

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parent
LANES = {"check": ("check",), "test": ("check", "test"), "real": ("real",)}
"""Name of a run -> the lanes of the files that are in it."""
# These need browsers, proxies, stores, Prometheus or clients of other people. The blocks of the
# pages need real models.
_FOREIGN = (
    "apis",
    "clients",
    "docker",
    "docs",
    "e2e/page",
    "engines/api_surface",
    "gpu",
    "monitoring",
    "proxies",
    "server/stores",
)
# A file that mentions one needs a program of the system, or a package in a folder of its own.
_FOREIGN_WORDS = (
    "SHARED",
    "sys.prefix",
    "tests.engines.shared_library",
    "tests.rapidocr",
    "tests.stores",
    "tests.system",
)
# These start servers, build engines or wheels. One file shows that a server serves.
_SLOW_PLACES = (
    "client/test_distribution.py",
    "contract",
    "e2e",
    "engines/backends/test_installing.py",
    "engines/build",
    "server/models/test_rebuild.py",
)
_SMOKE = TESTS / "e2e" / "test_http.py"
# Files that take more than half a minute go first: else one process waits at the end for the other,
# which began one of them last.
LONG = (
    *("docs/test_readme.py", "e2e/test_every_head.py", "engines/build/test_every_detector.py"),
    *("docs/test_recipes.py", "e2e/test_tune.py", "proxies/test_drain.py", "e2e/test_keys.py"),
    "e2e/test_key_limits.py",
    *("engines/backends/tensorrt/test_rtx.py", "engines/build/test_fuse.py", "e2e/test_bench.py"),
    *("engines/detect/test_contradictions.py", "engines/diff/test_faults.py"),
    *("e2e/test_lifecycle.py", "docker/test_starter.py", "e2e/test_heavy_images.py"),
    *("engines/build/test_interrupted_build.py", "e2e/test_health.py"),
    *("engines/build/test_every_file_builds.py", "docs/test_heads_page.py"),
    *("generated/test_generated_clients.py", "e2e/test_shadow.py", "e2e/test_pictures.py"),
    *("engines/build/test_nms_tail.py", "engines/detect/test_layouts.py"),
    *("engines/build/test_recognised_at_build.py", "e2e/test_tracked_clips.py"),
)
# Fixtures that build engines or type commands.
_SLOW = frozenset(("demo_batches", "demo_model", "demo_repository", "demo_versions", "fovea"))


def lane_of(file: Path) -> str:
    """The lane of a file: check, test or real."""
    if _is_in(file, _FOREIGN) or any(word in file.read_text() for word in _FOREIGN_WORDS):
        return "real"
    used = _fixtures_of(file)
    if "shared" in used:
        return "real"
    slow = _is_in(file, _SLOW_PLACES) or _SLOW & used
    return "test" if slow and file != _SMOKE else "check"


def in_order(files: Iterable[Path]) -> list[Path]:
    """Put the long ones first, and leave the others as they are."""
    ranks = {TESTS / name: rank for rank, name in enumerate(LONG)}
    return sorted(files, key=lambda file: ranks.get(file, len(ranks)))


def _is_in(file: Path, places: tuple[str, ...]) -> bool:
    return any(file.is_relative_to(TESTS / place) for place in places)


def _fixtures_of(file: Path) -> frozenset[str]:
    """The names of all fixtures of a file, and of those that they use in turn."""
    known = dict[str, frozenset[str]]()
    for folder in (*reversed(file.parents), None):
        source = file if folder is None else folder / "conftest.py"
        if source.is_relative_to(TESTS) and source.is_file():
            known |= _functions(source)
    todo = [name for names in _functions(file).values() for name in names]
    found = set[str]()
    while todo:
        if (name := todo.pop()) not in found:
            found.add(name)
            todo += known.get(name, ())
    return frozenset(found)


@cache
def _functions(file: Path) -> dict[str, frozenset[str]]:
    return dict(_parameters(ast.parse(file.read_text()).body))


def _parameters(nodes: Iterable[ast.stmt]) -> Iterator[tuple[str, frozenset[str]]]:
    """Fixtures and tests are not inside functions, which are most of a file."""
    for node in nodes:
        if isinstance(node, ast.ClassDef):
            yield from _parameters(node.body)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, frozenset(arg.arg for arg in (*node.args.args, *node.args.kwonlyargs))
