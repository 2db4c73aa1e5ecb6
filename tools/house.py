"""Print how the source is laid out, each figure beside its limit.

    python -m tools.house            the figures
    python -m tools.house --folders  and which folder imports which
    python -m tools.house --single   and the modules that only one other module imports
    python -m tools.house --surface  and the modules of the core that annexes import
    python -m tools.house --annexes  and the line of imports in the README of each annex

It reads the files with `ast` and imports nothing of the project. A "room" is a folder directly in a
package, or a file that lies there by itself. tests/architecture holds the limits.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CORE = {
    "fovea_preprocess": ROOT / "preprocess",
    "fovea_engines": ROOT / "engines",
    "fovea_server": ROOT / "server",
    "fovea_client": ROOT / "client",
}
ANNEXES = {
    "fovea_accuracy": ROOT / "engines",
    "fovea_drawing": ROOT / "engines",
    "fovea_heads": ROOT / "engines",
    "fovea_precision": ROOT / "engines",
    "fovea_lab": ROOT / "engines",
    "fovea_tensorrt": ROOT / "engines",
    "fovea_cardless": ROOT / "engines",
    "fovea_words": ROOT / "engines",
    "fovea_apis": ROOT / "server",
    "fovea_bench": ROOT / "server",
    "fovea_cluster": ROOT / "server",
    "fovea_connection": ROOT / "server",
    "fovea_embed": ROOT / "server",
    "fovea_extensions": ROOT / "server",
    "fovea_files": ROOT / "server",
    "fovea_keys": ROOT / "server",
    "fovea_life": ROOT / "server",
    "fovea_outbound": ROOT / "server",
    "fovea_page": ROOT / "server",
    "fovea_start": ROOT / "server",
    "fovea_stores": ROOT / "server",
    "fovea_pipelines": ROOT / "server",
    "fovea_streams": ROOT / "server",
}
PACKAGES = CORE | ANNEXES
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
    """The modules of all packages, and the imports between them."""

    def __init__(self) -> None:
        self.files: dict[str, Path] = {}
        for package, top in PACKAGES.items():
            for path in sorted((top / package).rglob("*.py")):
                parts = path.relative_to(top).with_suffix("").parts
                name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
                self.files[name] = path
        self.trees = {name: ast.parse(path.read_text()) for name, path in self.files.items()}

    @cached_property
    def nodes(self) -> dict[str, list[ast.AST]]:
        """Module -> all nodes of its tree."""
        return {name: [*ast.walk(tree)] for name, tree in self.trees.items()}

    @cached_property
    def imports(self) -> dict[str, set[str]]:
        """Module -> the modules it imports anywhere, also inside functions and for types."""
        return {name: set(self._imports_of(name)) - {name} for name in self.files}

    def _imports_of(self, name: str) -> Iterator[str]:
        for node in self.nodes[name]:
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

    def surface(self) -> dict[str, set[str]]:
        """Module of the core that annexes import -> these annexes."""
        users: dict[str, set[str]] = defaultdict(set)
        for module, imported in self.imports.items():
            if (annex := _package(module)) in ANNEXES:
                for name in imported:
                    if _package(name) in CORE:
                        users[name].add(annex)
        return dict(users)

    def imports_line(self, annex: str) -> str:
        """Make the line of an annex's README that says which rooms of which packages it imports."""
        rooms: dict[str, set[str]] = defaultdict(set)
        for module, imported in self.imports.items():
            if _package(module) == annex:
                for name in imported:
                    package, _, rest = name.partition(".")
                    rooms[package].add(rest.partition(".")[0])
        parts = (
            f"{package} ({', '.join(sorted(filter(None, rooms[package])))})".replace(" ()", "")
            for package in PACKAGES
            if package in rooms and package != annex
        )
        return f"**Imports**: {'; '.join(parts)}."

    def leaks(self) -> int:
        """Count the imports of annexes by the core."""
        return sum(
            _package(name) in ANNEXES
            for module, imported in self.imports.items()
            if _package(module) in CORE
            for name in imported
        )

    def class_names_twice(self) -> int:
        """Count the names that several classes of the server side have; the client is alone."""
        names = Counter(
            node.name
            for module, tree in self.trees.items()
            if _package(module) != "fovea_client"
            for node in tree.body
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
        )
        return sum(count > 1 for count in names.values())

    def figures(self) -> list[Figure]:
        """Count everything that has a limit."""
        lines = {name: len(path.read_text().splitlines()) for name, path in self.files.items()}
        core = [name for name in self.files if _package(name) in CORE]
        engines, server = self.rooms("fovea_engines"), self.rooms("fovea_server")
        return [
            Figure("rooms of engines in an import cycle", len(in_cycles(engines)), 0),
            Figure("rooms of server in an import cycle", len(in_cycles(server)), 0),
            Figure("imports between rooms of engines", sum(map(len, engines.values())), 35),
            Figure("imports between rooms of server", sum(map(len, server.values())), 62),
            Figure("imports of annexes by the core", self.leaks(), 0),
            Figure("modules of the core that annexes import", len(self.surface()), 120),
            Figure("names of classes used twice", self.class_names_twice(), 11),
            Figure('questions "is it TensorRT?" outside its folder', self._tensorrt_asked(), 0),
            Figure("reaches through DataPlane to the registry", self._reaches(), 0),
            Figure("annotations of Any in server", self._any(), 1),
            Figure("docstrings that begin with What, Who, How, ...", self._riddles(), 0),
            Figure("lines of the core", sum(lines[name] for name in core), None),
            Figure("modules of the core", len(core), None),
            Figure("lines in all", sum(lines.values()), None),
            Figure("modules in all", len(self.files), None),
            Figure("modules with one importer", len(self.single_importer()), None),
        ]

    def _tensorrt_asked(self) -> int:
        """Tests of a backend's name, wherever they are not the business of a backend."""
        outside = [
            nodes
            for name, nodes in self.nodes.items()
            if not name.startswith(("fovea_engines.backends", "fovea_tensorrt"))
        ]
        return sum(_asks_tensorrt(node) for nodes in outside for node in nodes)

    def _reaches(self) -> int:
        return sum(
            isinstance(node, ast.Attribute)
            and node.attr == "registry"
            and not (isinstance(node.value, ast.Name) and node.value.id == "self")
            for name, nodes in self.nodes.items()
            if name.startswith("fovea_server")
            for node in nodes
        )

    def _any(self) -> int:
        return sum(
            len(re.findall(r": Any\b", path.read_text()))
            for name, path in self.files.items()
            if name.startswith("fovea_server")
        )

    def _riddles(self) -> int:
        kinds = ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef
        nodes = (n for each in self.nodes.values() for n in each if isinstance(n, kinds))
        return sum(bool(_HIDDEN_SUBJECT.match(ast.get_docstring(node) or "")) for node in nodes)


def _package(module: str) -> str:
    return module.partition(".")[0]


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


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folders", action="store_true", help="which folder imports which")
    parser.add_argument("--single", action="store_true", help="modules with one importer")
    parser.add_argument("--surface", action="store_true", help="core modules that annexes import")
    parser.add_argument("--annexes", action="store_true", help="what each annex imports")
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
    if chosen.surface:
        for module, annexes in sorted(house.surface().items()):
            print(f"{module}: {', '.join(sorted(annexes))}")
    if chosen.annexes:
        for annex in ANNEXES:
            print(f"{annex}\n    {house.imports_line(annex)}")


if __name__ == "__main__":
    main()
