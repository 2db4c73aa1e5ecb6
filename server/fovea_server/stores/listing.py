"""The files of a repository in a store's listing, grouped by model, and checks of their keys."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Self

from fovea_engines.repository.card import CARD_FILE, HEAD_FILE
from fovea_engines.repository.files import json_sha256
from fovea_engines.repository.repository import check_name
from fovea_preprocess.errors import InvalidModel, InvalidOption
from fovea_preprocess.text import size_text

_LONGEST_NAME = 255
# Suffixes of text files that describe a model. The server reads such files into memory, so their
# size is limited.
_TEXTS = (".json", ".pbtxt", ".txt")
_MAX_OF_TEXT = 16 << 20


@dataclass(frozen=True, slots=True)
class Digest:
    """A digest that a store reports for a file. The digest covers `prefix` and the file's bytes."""

    algorithm: str
    value: str
    prefix: bytes = b""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file in a store.

    Attributes:
        key: path in the repository, such as digits/1/model.onnx.
        name: name of the file in the store.
        size: size in bytes.
        tag: text that changes with the content, such as an ETag.
        digest: digest of the content; None if the store reports no digest that can be verified.
        problem: reason why the file cannot be pulled; "" if it can.
    """

    key: str
    name: str
    size: int
    tag: str
    digest: Digest | None
    problem: str = ""

    @property
    def content_id(self) -> str:
        """Return an ID of the file that changes if the content changes."""
        return json_sha256([self.key, self.size, self.tag])[:40]


@dataclass(frozen=True, slots=True)
class RemoteModel:
    """The directory of a model in a store.

    Attributes:
        name: name of the model.
        files: files of the model, sorted by key.
        problem: reason why the model cannot be mirrored; "" if it can.
    """

    name: str
    files: tuple[RemoteFile, ...]
    problem: str = ""

    @property
    def content_id(self) -> str:
        """Return an ID of the model that changes if the content of any file changes."""
        return json_sha256(sorted(file.content_id for file in self.files))[:40]

    @classmethod
    def of(cls, name: str, files: Iterable[RemoteFile]) -> Self:
        """Return the model with these files, after checks of their keys and sizes."""
        files = tuple(sorted(files, key=lambda file: file.key))
        try:
            _check_keys([file.key for file in files if not file.problem])
            _check_files(files)
        except InvalidModel as error:
            return cls(name, files, str(error))
        return cls(name, files)

    @property
    def describing(self) -> tuple[RemoteFile, ...]:
        """Return the files that describe the model.

        If a version has a card.json, these are the card.json and the user's head file. If it has
        none, these are all files of the version.
        """
        paths = {file: PurePosixPath(file.key) for file in self.files}
        folders = {path.parent for path in paths.values() if path.name == CARD_FILE}
        return tuple(
            file
            for file, path in paths.items()
            if path.name in (CARD_FILE, HEAD_FILE) or folders.isdisjoint(path.parents)
        )


def models_of(files: Iterable[RemoteFile]) -> list[RemoteModel]:
    """Group files by model. Models whose names differ only in upper and lower case get a problem.

    Files outside model directories are left out.
    """
    folders: dict[str, list[RemoteFile]] = defaultdict(list)
    for file in files:
        name, slash, _ = file.key.partition("/")
        if slash and _names_a_model(name):
            folders[name].append(file)
    models = [RemoteModel.of(name, folders[name]) for name in sorted(folders)]
    spelled: dict[str, list[str]] = defaultdict(list)
    for name in folders:
        spelled[name.casefold()].append(name)
    return [
        model
        if len(same := spelled[model.name.casefold()]) == 1
        else RemoteModel(model.name, model.files, _differ_in_case(*sorted(same)[:2]))
        for model in models
    ]


def _names_a_model(name: str) -> bool:
    try:
        check_name(name)
    except InvalidOption:
        return False
    return True


def _check_files(files: Iterable[RemoteFile]) -> None:
    """Raise InvalidModel if a file cannot be pulled, or a text file exceeds the size limit."""
    for file in files:
        if file.problem:
            raise InvalidModel(file.problem)
        if file.size > _MAX_OF_TEXT and PurePosixPath(file.key).name.endswith(_TEXTS):
            raise InvalidModel(
                f"{file.key} has {size_text(file.size)}, over the limit of "
                f"{size_text(_MAX_OF_TEXT)}"
            )


def _check_keys(keys: list[str]) -> None:
    """Raise InvalidModel if a key is not a valid path, or two keys cannot be in one directory."""
    spelled: dict[str, str] = {}
    folders: set[str] = set()
    for key in keys:
        for part in key.split("/"):
            if part in ("", ".", "..") or "\\" in part or not part.isprintable():
                raise InvalidModel(f"the key {key!r} is not a file path below its model")
            if len(part.encode()) > _LONGEST_NAME:
                raise InvalidModel(
                    f"the key {key[:80]!r}... contains a name that exceeds 255 bytes"
                )
        above = [str(folder) for folder in PurePosixPath(key).parents][:-1]
        folders.update(above)
        for path in (key, *above):
            if spelled.setdefault(path.casefold(), path) != path:
                raise InvalidModel(_differ_in_case(spelled[path.casefold()], path))
    if both := folders.intersection(keys):
        raise InvalidModel(f"the key {min(both)!r} is a file and a folder at once")


def _differ_in_case(one: str, other: str) -> str:
    return f"{one!r} and {other!r} differ in nothing but case: rename one of them"
