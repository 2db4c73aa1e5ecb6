"""A model whose files came with the request to load it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from fovea_preprocess.errors import InvalidModel

_PREFIX = "file:"
# Deserialising one runs code that is in it.
_PLANS = (".plan", ".engine")


@contextmanager
def model_of_files(name: str, files: Mapping[str, bytes]) -> Iterator[Path]:
    """A model folder with just these files, for as long as the block runs.

    Args:
        name: of the model.
        files: path below the model's folder, with or without "file:" before it -> content.

    Yields:
        The folder.

    Raises:
        InvalidModel: a path leads out of the folder, or a file may not come this way.
    """
    with tempfile.TemporaryDirectory(prefix="fovea-model-") as root:
        folder = Path(root).resolve() / name
        folder.mkdir()
        for path, content in files.items():
            _write(folder, path, content)
        yield folder


def _write(folder: Path, path: str, content: bytes) -> None:
    try:
        file = (folder / path.removeprefix(_PREFIX)).resolve()
        if folder not in file.parents:
            raise InvalidModel(
                f"Invalid file parameter '{path}' with normalized path '{file}' must stay within "
                "model directory."
            )
        if file.suffix in _PLANS:
            raise InvalidModel(
                f"file parameter '{path}' is a TensorRT engine, which could run any code when it "
                "is loaded: put it into the repository yourself"
            )
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    except (OSError, ValueError) as error:
        raise InvalidModel(f"file parameter '{path}' cannot be written: {error}") from error
