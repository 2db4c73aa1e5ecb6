"""Print how the source is laid out, each figure beside its limit.

    python -m tools.house            the figures
    python -m tools.house --folders  and which folder imports which
    python -m tools.house --single   and the modules that only one other module imports

It reads the files with `ast` and imports nothing of the project. A "room" is a folder directly in a
package, or a file that lies there by itself. tests/architecture holds the limits.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = {
    "fovea_preprocess": ROOT / "preprocess",
    "fovea_engines": ROOT / "engines",
    "fovea_server": ROOT / "server",
    "fovea_client": ROOT / "client",
}
_HIDDEN_SUBJECT = re.compile(r"(What|Who|Whose|Whether|Which|How)\b")


@dataclass(frozen=True)
class Figure:
    """A count, and the most that it may be; None where there is no limit.

    Limits only ever go down: a change that reaches a lower figure lowers the limit with it.
    """

    title: str
    value: int
    limit: int | None


class House:
    """The modules of the four packages, and the imports between them."""

    def __init__(self) -> None:
        self.files: dict[str, Path] = {}
        for package, top in PACKAGES.items():
            for path in sorted((top / package).rglob("*.py")):
                parts = path.relative_to(top).with_suffix("").parts
                name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
                self.files[name] = path
        self.trees = {name: ast.parse(path.read_text()) for name, path in self.files.items()}

    @cached_property
    def imports(self) -> dict[str, set[str]]:
        """Module -> the modules it imports anywhere, also inside functions and for types."""
        return {name: set(self._imports_of(name)) - {name} for name in self.files}

    def _imports_of(self, name: str) -> Iterator[str]:
        for node in ast.walk(self.trees[name]):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names if alias.name in self.files)
            elif isinstance(node, ast.ImportFrom) and node.module in self.files:
                for alias in node.names:
                    inner = f"{node.module}.{alias.name}"
                    yield inner if inner in self.files else node.module

    def rooms(self, package: str) -> dict[str, set[str]]:
        """Room of a package -> the other rooms that it imports."""
        rooms: dict[str, set[str]] = defaultdict(set)
        for name, imported in self.imports.items():
            if name.startswith(f"{package}."):
                room = name.split(".")[1]
                inside = (each.split(".") for each in imported if each.startswith(f"{package}."))
                rooms[room] |= {parts[1] for parts in inside if parts[1] != room}
        return dict(rooms)

    def single_importer(self) -> list[str]:
        """Modules that exactly one other module imports.

        What a registry lists, such as a head, is imported by nothing else, and does not count.
        """
        importers: dict[str, list[str]] = defaultdict(list)
        for module, imported in self.imports.items():
            for name in imported:
                importers[name].append(module)
        return sorted(
            name
            for name, users in importers.items()
            if len(users) == 1 and not users[0].endswith(".registry")
        )

    def figures(self) -> list[Figure]:
        """Count everything that has a limit."""
        lines = {name: len(path.read_text().splitlines()) for name, path in self.files.items()}
        files = (path for top in PACKAGES.values() for path in top.rglob("*.js"))
        scripts = [len(path.read_text().splitlines()) for path in files]
        engines, server = self.rooms("fovea_engines"), self.rooms("fovea_server")
        return [
            Figure("rooms of engines in an import cycle", len(in_cycles(engines)), 0),
            Figure("rooms of server in an import cycle", len(in_cycles(server)), 0),
            Figure("import levels of engines", levels(engines), 9),
            Figure("imports between rooms of engines", sum(map(len, engines.values())), 61),
            Figure("import levels of server", levels(server), 10),
            Figure("imports between rooms of server", sum(map(len, server.values())), 95),
            Figure("files directly in fovea_engines", self._loose("fovea_engines"), 6),
            Figure("files directly in fovea_server", self._loose("fovea_server"), 9),
            Figure('questions "is it TensorRT?" outside its folder', self._tensorrt_asked(), 0),
            Figure("reaches through DataPlane to the registry", self._reaches(), 0),
            Figure("annotations of Any in server", self._any(), 1),
            Figure("lines of Python", sum(lines.values()), None),
            Figure("lines of the longest file", max(*lines.values(), *scripts), None),
            Figure("modules", len(self.files), None),
            Figure("modules with one importer", len(self.single_importer()), 87),
            Figure("docstrings that begin with What, Who, How, ...", self._riddles(), 0),
        ]

    def _loose(self, package: str) -> int:
        folder = PACKAGES[package] / package
        return sum(path.name != "__init__.py" for path in folder.glob("*.py"))

    def _tensorrt_asked(self) -> int:
        """Tests of a backend's name, wherever they are not the business of a backend."""
        outside = [
            tree
            for name, tree in self.trees.items()
            if not name.startswith("fovea_engines.backends")
        ]
        return sum(_asks_tensorrt(node) for tree in outside for node in ast.walk(tree))

    def _reaches(self) -> int:
        return sum(
            isinstance(node, ast.Attribute)
            and node.attr == "registry"
            and not (isinstance(node.value, ast.Name) and node.value.id == "self")
            for name, tree in self.trees.items()
            if name.startswith("fovea_server")
            for node in ast.walk(tree)
        )

    def _any(self) -> int:
        return sum(
            len(re.findall(r": Any\b", path.read_text()))
            for name, path in self.files.items()
            if name.startswith("fovea_server")
        )

    def _riddles(self) -> int:
        kinds = ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef
        nodes = (n for tree in self.trees.values() for n in ast.walk(tree) if isinstance(n, kinds))
        return sum(bool(_HIDDEN_SUBJECT.match(ast.get_docstring(node) or "")) for node in nodes)


def _asks_tensorrt(node: ast.AST) -> bool:
    match node:
        case ast.Name(id="TENSORRT_BACKENDS", ctx=ast.Load()) | ast.Attribute(attr="for_tensorrt"):
            return True
        case ast.Compare(left=left, comparators=[*rights]):
            return any(
                isinstance(each, ast.Constant) and str(each.value).startswith("tensorrt")
                for each in (left, *rights)
            )
    return False


def in_cycles(rooms: dict[str, set[str]]) -> set[str]:
    """Rooms that import themselves through others."""

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        todo = list(rooms[start])
        while todo:
            if (room := todo.pop()) not in seen:
                seen.add(room)
                todo.extend(rooms.get(room, ()))
        return seen

    return {room for room in rooms if room in reached(room)}


def levels(rooms: dict[str, set[str]]) -> int:
    """Rooms on the longest chain of imports; 0 where a cycle makes it endless."""
    depth: dict[str, int] = {}
    try:
        for room in TopologicalSorter(rooms).static_order():
            depth[room] = 1 + max((depth[each] for each in rooms.get(room, ())), default=0)
    except CycleError:
        return 0
    return max(depth.values())


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folders", action="store_true", help="which folder imports which")
    parser.add_argument("--single", action="store_true", help="modules with one importer")
    chosen = parser.parse_args()
    house = House()
    for figure in house.figures():
        limit = "" if figure.limit is None else f"  of {figure.limit:,}"
        print(f"{figure.value:>8,}{limit:<12} {figure.title}")
    if chosen.folders:
        for package in ("fovea_engines", "fovea_server"):
            for room, imported in sorted(house.rooms(package).items()):
                print(f"{package}.{room}: {', '.join(sorted(imported))}")
    if chosen.single:
        print(*house.single_importer(), sep="\n")


if __name__ == "__main__":
    main()
