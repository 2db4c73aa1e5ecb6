"""`fovea init`: a small project to start from."""

from __future__ import annotations

import os
import shlex
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from fovea_engines.repository.writing import write_file
from fovea_preprocess.errors import InvalidOption, Unavailable

# File of the project -> where it lies in this package.
_FILES = {
    "README.md": "starter/README.md",
    "compose.yaml": "starter/compose.yaml",
    "detect.py": "starter/detect.py",
    "digits.jpg": "demo/scene-1.jpg",
    "models/digits.onnx": "demo/digits.onnx",
}


def init(
    folder: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="Folder of the project; made where it is missing."),
    ] = Path(),
) -> None:
    """Write a small project to start from: a demo model, a client, and a compose file.

    Put your own ONNX files into its folder models/. Files that exist are not overwritten.

    Example: fovea init my-project
    """
    if taken := [name for name in _FILES if os.path.lexists(folder / name)]:
        raise InvalidOption(
            f"{folder.absolute()} has {', '.join(taken)} already, and nothing is overwritten: "
            "give the name of a new folder, as in `fovea init my-project`"
        )
    try:
        (folder / "models").mkdir(parents=True, exist_ok=True)
        for name, source in _FILES.items():
            write_file(folder / name, (files("fovea_server") / source).read_bytes())
    except OSError as error:
        raise Unavailable(
            f"{error.filename} cannot be written ({error.strerror}): give a folder of yours"
        ) from error
    for name in _FILES:
        typer.echo(f"wrote {folder / name}")
    enter = [] if folder == Path() else [f"cd {shlex.quote(str(folder))}"]
    _show("Next:", *enter, "fovea build models/digits.onnx", "fovea serve")
    there = "Then, in another terminal with the same environment:"
    _show(there, *enter, "python detect.py digits digits.jpg")
    typer.echo("\nREADME.md there has the same steps for your own model, and for Docker.")


def _show(title: str, *commands: str) -> None:
    typer.echo("\n    ".join((f"\n{title}", *commands)))
