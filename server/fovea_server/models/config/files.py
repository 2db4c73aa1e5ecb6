"""Checks names and paths in the configuration of a model and in requests to load a model.

Both may come from a client, so no path may lead out of the model's directory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from fovea_engines.backends.registry import BACKENDS
from fovea_engines.repository.card import CARD_FILE
from fovea_engines.repository.labels import read_labels
from fovea_engines.repository.locking import temporary_folder
from fovea_engines.repository.model_config import ModelConfig
from fovea_preprocess.errors import InvalidModel, InvalidOption, InvalidRequest, NotFound

# Suffixes of TensorRT engine files. Loading such a file can execute code, so requests may not
# upload these files. A card may name any file as its engine, so the check covers all files.
_UNSAFE_SUFFIXES = (".plan", ".engine")
_SAFE_ENGINES = (".onnx", ".xml")
_UNSAFE = (
    "could be a TensorRT engine, which can run any code when it is loaded: a request may not "
    "contain it; copy it into the repository"
)


def check_name(name: str) -> None:
    """Raise InvalidRequest for empty names and for names that are unsafe in paths or log lines."""
    if not name:
        raise InvalidRequest("model name must not be empty")
    if not name.strip():
        raise InvalidRequest("model name must not contain only whitespace characters")
    if ".." in name or "/" in name:
        raise InvalidRequest(
            f"invalid model name '{name}', model name must not contain path traversal characters"
        )
    if not name.isprintable():
        raise InvalidRequest(
            f"invalid model name {name!r}, model name must not contain control characters"
        )


def inside(folder: Path, name: str) -> Path:
    """Join a directory and a relative path.

    Raises:
        InvalidModel: the path leads out of the directory.
    """
    path = Path(name)
    if path.is_absolute() or ".." in path.parts or "\0" in name:
        raise InvalidModel(
            f"the configuration names '{name}', which is outside {folder}: name a file in that "
            "folder"
        )
    return folder / path


def read_output_labels(config: ModelConfig, folder: Path) -> dict[str, tuple[str, ...]]:
    """Read the class names of each output, in the order of class ids.

    Raises:
        InvalidModel: a label file is missing or empty.
    """
    labels = {}
    for output in config.output:
        if output.label_filename:
            try:
                labels[output.name] = read_labels(inside(folder, output.label_filename))
            except (NotFound, InvalidOption) as error:
                raise InvalidModel(f"labels of output '{output.name}': {error}") from error
    return labels


@contextmanager
def model_of_files(name: str, files: Mapping[str, bytes]) -> Iterator[Path]:
    """Write files to a temporary model directory, which is removed when the `with` block ends.

    Args:
        name: name of the model.
        files: content of each file by its path; a path may begin with "file:".

    Yields:
        The directory of the model.

    Raises:
        InvalidModel: the name or a path is invalid, or a file has an unsafe type.
    """
    with temporary_folder("model") as root:
        folder = root.resolve() / name
        try:
            folder.mkdir()
        except (OSError, ValueError) as error:
            raise InvalidModel(
                f"{name!r} is not a valid name for a model's folder: {error}"
            ) from error
        for path, content in files.items():
            _write(folder, path, content)
        yield folder


def check_engine_files(config: ModelConfig) -> None:
    """Raise InvalidModel if the configuration names a file that could be a TensorRT engine."""
    unsafe = [backend for backend in BACKENDS.values() if backend.runs_code]
    if any(config.backend == one.name or config.platform == one.platform for one in unsafe):
        raise InvalidModel(f"a model for {config.backend or config.platform} {_UNSAFE}")
    for name in (config.default_model_filename, *config.cc_model_filenames.values()):
        if name and Path(name).suffix not in _SAFE_ENGINES:
            raise InvalidModel(f"engine file '{name}' {_UNSAFE}")


def _write(folder: Path, path: str, content: bytes) -> None:
    try:
        file = (folder / path.removeprefix("file:")).resolve()
        if folder not in file.parents:
            raise InvalidModel(
                f"Invalid file parameter '{path}' with normalized path '{file}' must stay within "
                "model directory."
            )
        if file.suffix in _UNSAFE_SUFFIXES or file.name == CARD_FILE:
            raise InvalidModel(f"file parameter '{path}' {_UNSAFE}")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    except (OSError, ValueError) as error:
        raise InvalidModel(f"file parameter '{path}' cannot be written: {error}") from error
