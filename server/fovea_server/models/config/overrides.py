"""Makes a model folder from files in a request to load a model."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fovea_engines.backends.registry import BACKENDS
from fovea_engines.repository.card import CARD_FILE
from fovea_preprocess.errors import InvalidModel

_PREFIX = "file:"
# Deserialising a TensorRT engine runs the code in it; a card may name any file as one.
_UNSAFE_SUFFIXES = (".plan", ".engine")
_SAFE_ENGINES = (".onnx", ".xml")


_UNSAFE = (
    "could be a TensorRT engine, which runs any code when it is loaded: put it into the repository "
    "yourself"
)


@contextmanager
def model_of_files(name: str, files: Mapping[str, bytes]) -> Iterator[Path]:
    """Make a temporary model folder with these files, for the duration of the block.

    Args:
        name: of the model.
        files: path below the model's folder, with or without the prefix "file:" -> content.

    Raises:
        InvalidModel: the name is not valid for a folder, a path leads out of it, or a file has
            an unsafe type.
    """
    with tempfile.TemporaryDirectory(prefix="fovea-model-") as root:
        folder = Path(root).resolve() / name
        try:
            folder.mkdir()
        except (OSError, ValueError) as error:
            raise InvalidModel(f"{name!r} cannot name a model's folder: {error}") from error
        for path, content in files.items():
            _write(folder, path, content)
        yield folder


def check_engine_files(message: Any) -> None:
    """Refuse a configuration that would load one of the files as a TensorRT engine.

    Args:
        message: the `ModelConfig` of the same request.

    Raises:
        InvalidModel: it names such a file, or TensorRT.
    """
    unsafe = [backend for backend in BACKENDS.values() if backend.runs_code]
    if any(message.backend == one.name or message.platform == one.platform for one in unsafe):
        raise InvalidModel(f"what is for {message.backend or message.platform} {_UNSAFE}")
    for name in (message.default_model_filename, *message.cc_model_filenames.values()):
        if name and Path(name).suffix not in _SAFE_ENGINES:
            raise InvalidModel(f"engine file '{name}' {_UNSAFE}")


def _write(folder: Path, path: str, content: bytes) -> None:
    try:
        file = (folder / path.removeprefix(_PREFIX)).resolve()
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
