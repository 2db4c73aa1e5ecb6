"""Loads the Python file with a user's head, which a build stores beside the engine."""

from __future__ import annotations

import hashlib
import sys
from functools import partial
from inspect import isabstract
from pathlib import Path
from types import ModuleType

from fovea_engines.heads.custom import MODULE, CustomHead, FileDetector, FileHead, named_lines
from fovea_engines.heads.families import HEADS
from fovea_engines.heads.presets import check_fields
from fovea_engines.heads.registry import FAMILIES
from fovea_engines.repository.card import HEAD_FILE, EngineCard
from fovea_engines.results.detections import Detections
from fovea_engines.results.registry import RESULT_OF
from fovea_preprocess.errors import InvalidModel, InvalidOption, NotFound

# Number of digits of the file's sha256 in the name of its family.
_DIGITS = 12


def head_in_file(family: str | None) -> type[FileHead] | None:
    """Return the head of a family if its file is loaded in this process, otherwise None."""
    head = None if family is None else FAMILIES.get(family)
    return head if head is not None and issubclass(head, FileHead) else None


def load_head(path: Path) -> type[FileHead]:
    """Run a file with a user's head, and return its family.

    The name of the family is the name of the file and the first digits of its sha256.

    Raises:
        NotFound: the file is missing or unreadable.
        InvalidModel: the file fails, or has no valid class. The message contains the line.
    """
    content = _content(path)
    return _load(f"{path.name}@{_digest(content)[:_DIGITS]}", content, path, str(path))


def load_head_of(folder: Path, card: EngineCard, *, allow_code: bool) -> None:
    """Run the file with the head of a model version, if it has one.

    Raises:
        InvalidOption: the operator does not allow code.
        InvalidModel: the file differs from the file of the build, or `load_head` raises this error.
    """
    if HEAD_FILE not in card.files:
        return
    path = folder / HEAD_FILE
    shown = f"{folder.parent.name}/{folder.name}/{HEAD_FILE}"
    if not allow_code:
        raise InvalidOption(
            f"the head of {card.name} is Python code, {shown}: run it with --allow-code if you "
            "trust its author"
        )
    content = _content(path)
    digest, name = _digest(content), card.family or ""
    if digest != card.files[HEAD_FILE] or not name.endswith(f"@{digest[:_DIGITS]}"):
        raise InvalidModel(
            f"{shown} was changed after the build (its sha256 differs from the card's), so the "
            "server does not run it: build the engine again"
        )
    _load(name, content, path, shown)


def _load(name: str, content: bytes, path: Path, shown: str) -> type[FileHead]:
    known = head_in_file(name)
    if known is not None and known.content == content:
        return known
    with named_lines(shown, InvalidModel):
        written = _class_of(_run(content, path), shown)
        base = FileDetector if RESULT_OF[written.task] is Detections else FileHead
        family = base.as_family(
            name,
            task=written.task,
            labels=tuple(written.labels),
            preprocess=dict(written.preprocess),
            nameless=all(head.nameless for head in HEADS if head.task == written.task),
            written=written,
            file=shown,
            content=content,
        )
    FAMILIES.add(family)
    return family


def _run(content: bytes, path: Path) -> ModuleType:
    name = f"{MODULE}{_digest(content)}"
    # Register the module, because `dataclass` looks up the module of a class in `sys.modules`.
    module = sys.modules[name] = ModuleType(name)
    module.__file__ = str(path)
    # Let the user's code print to stderr, because other programs may parse the stdout of commands.
    vars(module)["print"] = partial(print, file=sys.stderr)
    exec(compile(content, str(path), "exec", dont_inherit=True), vars(module))
    return module


def _class_of(module: ModuleType, shown: str) -> type[CustomHead]:
    """Return the only head class of a file. Its class variables are checked."""
    found = [
        one
        for one in vars(module).values()
        if isinstance(one, type)
        and issubclass(one, CustomHead)
        and one.__module__ == module.__name__
    ]
    if len(found) != 1:
        names = ", ".join(one.__name__ for one in found) or "none"
        raise InvalidModel(
            f"{shown} must have one class that extends fovea_engines.api.CustomHead, but it has "
            f"{names}: `fovea init --head` writes an example"
        )
    [written] = found
    if isabstract(written):
        raise InvalidModel(f"{shown}: {written.__name__} has no method decode(outputs, options)")
    if written.task not in RESULT_OF:
        raise InvalidModel(
            f"{shown}: task is {written.task!r}; it must be one of {', '.join(RESULT_OF)}"
        )
    for field in ("outputs", "labels"):
        value = getattr(written, field)
        if not isinstance(value, tuple | list) or not all(isinstance(one, str) for one in value):
            raise InvalidModel(
                f'{shown}: {field} is {value!r}; it must be a tuple of names, such as ("a", "b")'
            )
    if not written.outputs:
        raise InvalidModel(
            f"{shown}: `outputs` must list the names of the outputs that decode reads"
        )
    if written.task == "pose" and written.skeleton is None:
        raise InvalidModel(f"{shown}: task pose needs `skeleton`, the names of its keypoints")
    try:
        check_fields(written.preprocess)
    except InvalidOption as error:
        raise InvalidModel(f"{shown}: preprocess: {error}") from error
    return written


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise NotFound(f"{path} cannot be read ({error.strerror}): check the path") from error


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
