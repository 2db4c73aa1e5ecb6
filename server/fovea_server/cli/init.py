"""`fovea init`: writes a small project to start from."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from fovea_engines.repository.files import write_file, writing
from fovea_preprocess.errors import InvalidOption, Unavailable
from fovea_server.cli.options import check_options

# Path of each file in the project -> its package, and its path in the package.
_FILES = {
    "README.md": ("fovea_server", "cli/starter/README.md"),
    "compose.yaml": ("fovea_server", "cli/starter/compose.yaml"),
    "detect.py": ("fovea_server", "cli/starter/detect.py"),
    "digits.jpg": ("fovea_server", "demo/scene-1.jpg"),
    "models/digits.onnx": ("fovea_server", "demo/digits.onnx"),
}


def init(
    context: typer.Context,
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            help="Folder of the new project. The command creates it if it does not exist.",
        ),
    ] = Path(),
    from_triton: Annotated[
        Path | None,
        typer.Option(
            metavar="REPOSITORY",
            help=(
                "Triton model repository to start from: the command copies its ONNX models, and "
                "lists its Python and DALI steps. It neither runs nor changes files in this "
                "repository."
            ),
            exists=True,
            file_okay=False,
        ),
    ] = None,
    head: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.py",
            help=(
                "Instead of a project, write a Python template that decodes the outputs of an "
                "unsupported model (a head), and a test for it."
            ),
            dir_okay=False,
        ),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(
            metavar="MODEL.onnx",
            help=(
                "Model for --head. The template then contains the names and shapes of this "
                "model's outputs."
            ),
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="With --from-triton: print the result as one JSON document instead of text.",
        ),
    ] = False,
) -> None:
    """Start a project with a demo model, a client and a compose file.

    Put your own ONNX files into the folder models/ of the project. The command does not overwrite
    files.

    Example: fovea init my-project

    Example: fovea init my-project --from-triton model_repository

    Example: fovea init --head my_head.py --model model.onnx
    """
    others = [(name, "head") for name in ("folder", "from_triton", "as_json")]
    check_options(context, {"model": {"head": ()}}, others)
    if head is not None:
        _start_head(head, model)
        return
    if from_triton is not None:
        _start_from(from_triton, folder, as_json)
        return
    if as_json:
        raise InvalidOption("--json has no effect without --from-triton")
    packed = {name: files(package) / path for name, (package, path) in _FILES.items()}
    _write_project(folder, {name: file.read_bytes() for name, file in packed.items()})
    for name in _FILES:
        typer.echo(f"wrote {folder / name}")
    enter = [] if folder == Path() else [f"cd {shlex.quote(str(folder))}"]
    _show("Next:", *enter, "fovea build models/digits.onnx", "fovea serve")
    there = "Then, in another terminal with the same environment:"
    _show(there, *enter, "python detect.py digits digits.jpg")
    typer.echo("\nREADME.md there has the same steps for your own model, and for Docker.")


def _start_head(file: Path, model: Path | None) -> None:
    from fovea_server.cli.new_head import NewHead

    made = NewHead.of(file, model)
    _check_free(file.parent, made.files, "the head another name")
    _write(file.parent, made.files)
    for name in made.files:
        typer.echo(f"wrote {file.parent / name}")
    source = shlex.quote(str(model or made.model))
    test, own = (shlex.quote(str(file.parent / name)) for name in (f"test_{file.name}", file.name))
    build = f"fovea build {source} --head {own} --images DIR"
    _show(f"Correct decode in {file}, then:", f"pytest {test}", build, "fovea serve --allow-code")


def _start_from(repository: Path, folder: Path, as_json: bool) -> None:
    from fovea_server.cli.from_triton.migrate import migrate
    from fovea_server.cli.from_triton.repository import check_root

    check_root(repository.resolve())
    if (folder / "models").resolve().is_relative_to(repository.resolve()):
        raise InvalidOption(
            f"{folder / 'models'} is inside the source repository, which init never changes: give "
            f"a new folder, as in `fovea init my-project --from-triton {repository}`"
        )
    found = migrate(repository)
    text = json.dumps(found.document(), indent=2)
    _write_project(folder, {**found.files, "from-triton.json": f"{text}\n".encode()})
    if as_json:
        typer.echo(text)
        return
    for line in found.lines():
        typer.echo(line)
    enter = [] if folder == Path() else [f"cd {shlex.quote(str(folder))}"]
    absent = {
        one.name
        for one in found.networks
        if f"models/{one.name}.onnx" in one.build and f"models/{one.name}.onnx" not in one.files
    }
    builds = [
        f"{one.build}{'  # once the file is there' * (one.name in absent)}"
        for one in found.networks
        if one.build
    ]
    _show("Next:", *enter, *builds, "fovea serve")
    if not absent and not any(one.steps for one in found.networks):
        typer.echo(
            "\nNo model has preprocessing steps, so no change is needed: `fovea serve "
            f"{shlex.quote(str(repository))}` serves the repository unchanged. A model that you "
            "build with `fovea build` accepts images, and its results are checked."
        )
    typer.echo(f"\n{folder / 'from-triton.json'} contains this report.")


def _write_project(folder: Path, content: Mapping[str, bytes | Path]) -> None:
    """Write or copy all files of a project.

    Raise InvalidOption if one of the files exists already.
    """
    _check_free(folder, content, "the name of a new folder, as in `fovea init my-project`")
    _write(folder, content, "models")


def _check_free(folder: Path, names: Iterable[str], instead: str) -> None:
    if taken := [name for name in names if os.path.lexists(folder / name)]:
        raise InvalidOption(
            f"{folder.absolute()} already contains {', '.join(taken)}, and init never overwrites "
            f"files: give {instead}"
        )


def _write(folder: Path, content: Mapping[str, bytes | Path], within: str = "") -> None:
    """Write or copy files into a directory; also create its subdirectory `within`."""
    try:
        (folder / within).mkdir(parents=True, exist_ok=True)
        for name, source in content.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            if isinstance(source, bytes):
                write_file(folder / name, source)
            else:
                with writing(folder / name, source.stat().st_size):
                    shutil.copyfile(source, folder / name)
    except OSError as error:
        raise Unavailable(
            f"{error.filename} cannot be written ({error.strerror}): give a folder that you can "
            "write to"
        ) from error


def _show(title: str, *commands: str) -> None:
    typer.echo("\n    ".join((f"\n{title}", *commands)))
