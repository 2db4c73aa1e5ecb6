"""Dockerfiles, read. tests/images builds them."""

import fnmatch
import re
import shlex
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Instruction:
    """One instruction; `stage` counts the FROM lines before it, from 0."""

    stage: int
    word: str
    text: str

    @property
    def arguments(self) -> list[str]:
        return [word for word in shlex.split(self.text) if not word.startswith("--")]

    def option(self, name: str) -> str | None:
        found = re.search(rf"--{name}=(\S+)", self.text)
        return found and found[1]


def read_dockerfile(path: Path) -> list[Instruction]:
    text = re.sub(r"^\s*#.*\n", "", path.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    stage, found, bases = -1, [], {}
    for line in filter(str.strip, text.splitlines()):
        word, _, rest = line.partition(" ")
        stage += word == "FROM"
        if word == "ARG" and stage < 0:
            name, _, base = rest.partition("=")
            bases[f"${{{name}}}"] = base
        elif word == "FROM":
            name, *others = rest.split()
            rest = " ".join((bases[name], *others))
        found.append(Instruction(stage, word, " ".join(rest.split())))
    return found


def all_of(dockerfile: list[Instruction], word: str) -> list[Instruction]:
    return [instruction for instruction in dockerfile if instruction.word == word]


def in_context(root: Path, path: str) -> bool:
    """Whether .dockerignore lets a path through: the last rule that matches decides."""
    kept = True
    for line in (root / ".dockerignore").read_text().splitlines():
        rule = line.removeprefix("!")
        parts = [path, *map(str, Path(path).parents)]
        if line and not line.startswith("#") and any(fnmatch.fnmatch(p, rule) for p in parts):
            kept = line.startswith("!")
    return kept
