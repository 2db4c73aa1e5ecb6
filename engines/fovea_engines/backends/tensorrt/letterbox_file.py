"""Stores the letterbox kernel beside a plan: PTX, after a line that describes its rows."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter, ValidationError

from fovea_engines.backends.cuda.base import Device
from fovea_engines.backends.cuda.letterbox import LetterboxKernel, compile_letterbox
from fovea_engines.progress import Progress
from fovea_engines.repository.writing import write_file
from fovea_preprocess.errors import BackendUnavailable, InferenceFailed, InvalidModel
from fovea_preprocess.spec import PreprocessSpec

LETTERBOX_FILE = "letterbox.ptx"

# Starts a comment in PTX.
_MARK = b"// "
_SPEC: Final = TypeAdapter(PreprocessSpec)

log = logging.getLogger(__name__)


def write_letterbox(folder: Path, spec: PreprocessSpec, progress: Progress) -> None:
    """Compile the kernel of an engine into its folder, for every supported GPU.

    Without a compiler there is no kernel, and the host letterboxes; `progress` reports it.

    Args:
        folder: of the plan.
        spec: of the engine's input.
        progress: reports a missing compiler.
    """
    try:
        kernel = compile_letterbox(spec)
    except BackendUnavailable as error:
        progress.note(f"the engine is built without its letterbox, so the host does it: {error}")
        return
    write_file(folder / LETTERBOX_FILE, with_spec(kernel, spec))


def with_spec(kernel: bytes, spec: PreprocessSpec) -> bytes:
    """Return the contents of the file."""
    return _MARK + _SPEC.dump_json(spec) + b"\n" + kernel


def open_letterbox(folder: Path, device: Device) -> LetterboxKernel | None:
    """Open the kernel in an engine's folder; the device is current.

    Returns:
        None without a kernel, or if the driver rejects it: the host letterboxes then.

    Raises:
        InvalidModel: the file is damaged.
    """
    file = folder / LETTERBOX_FILE
    if not file.is_file():
        return None
    line, _, kernel = file.read_bytes().partition(b"\n")
    try:
        spec = _SPEC.validate_json(line.removeprefix(_MARK), strict=True)
    except ValidationError as error:
        raise InvalidModel(f"{file} is damaged: build the engine again") from error
    try:
        return LetterboxKernel(device, kernel, spec)
    except InferenceFailed as error:
        log.warning("%s: %s; until then the host letterboxes", file, error)
        return None
