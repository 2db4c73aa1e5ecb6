"""Finds the plan in an engine file: a plain TensorRT plan, or an .engine file of Ultralytics.

A plan of TensorRT begins with "ftrt" and a serialization version (0). Bytes 24 to 27 are the
version of TensorRT that built the plan: major, minor, patch and build number. The source is
printPlanVersion in samples/common/sampleEngines.cpp of github.com/NVIDIA/TensorRT, which `trtexec
--getPlanVersionOnly` uses. A plan of TensorRT for RTX begins with "vtrt", and has its version at
the same position (seen in plans of version 1.7.1).

Ultralytics writes a header before the plan: the length of a JSON text as a signed 32-bit
little-endian integer, and then the JSON text (github.com/ultralytics/ultralytics/issues/21513).
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, BinaryIO

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fovea_engines.heads.metadata import labels_from_metadata
from fovea_preprocess.errors import InvalidModel, NotFound

_BACKENDS = {b"ftrt": "tensorrt", b"vtrt": "tensorrt-rtx"}
_PLAN_START = 28
_LENGTH = 4
_LONGEST_HEADER = 1 << 20

_NAMES = {"tensorrt": "TensorRT", "tensorrt-rtx": "TensorRT for RTX"}
_Side = Annotated[int, Field(ge=1, le=1 << 16)]


@dataclass(frozen=True, slots=True)
class PlanFile:
    """A file with a TensorRT plan. The attributes come from the beginning of the file.

    Attributes:
        path: path of the file.
        offset: position of the plan in the file in bytes; 0 without a header.
        backend: "tensorrt" or "tensorrt-rtx".
        version: (major, minor, patch, build) of the TensorRT that built the plan; None if the plan
            has an unknown serialization version.
        metadata: metadata in the header, in the form of `metadata_props` of an ONNX file.
    """

    path: Path
    offset: int
    backend: str
    version: tuple[int, int, int, int] | None
    metadata: dict[str, str]

    @contextmanager
    def plan(self) -> Iterator[memoryview]:
        """Yield the bytes of the plan, memory-mapped without a copy.

        The bytes are valid only inside the `with` block.
        """
        with (
            self.path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
            memoryview(mapped) as whole,
            whole[self.offset :] as plan,
        ):
            yield plan

    def rejection(self, backend: str, version: str) -> str | None:
        """Return the reason why a version of a runtime cannot load the plan.

        A plan runs only in the release of TensorRT that built it. A version-compatible plan would
        run in later releases, but it contains host code, and Fovea does not run host code from
        plans. NVIDIA documents this at docs.nvidia.com/deeplearning/tensorrt and tensorrt-rtx,
        "Engine Compatibility".

        Args:
            backend: name of the runtime's backend.
            version: version of the runtime.

        Returns:
            The reason with a remedy. If the runtime may load the plan, None.
        """
        found = ".".join(map(str, self.version or ()))
        maker, here = f"{_NAMES[self.backend]} {found}".rstrip(), f"{_NAMES[backend]} {version}"
        if backend != self.backend:
            remedy = f"serve it with --backend {self.backend}"
        elif self._may_run_with(version):
            return None
        else:
            remedy = f"install {maker}"
        return (
            f"{self.path} was made by {maker}, and {here} cannot load it: build it again with "
            f"{here}, or {remedy}"
        )

    def _may_run_with(self, version: str) -> bool:
        if self.version is None:
            return True
        return self.version[:3] == tuple(map(int, version.split(".")[:3]))


def read_plan_file(path: Path) -> PlanFile:
    """Find the plan in an engine file, and read the header before the plan.

    Raises:
        NotFound: the file does not exist.
        InvalidModel: the file is not an engine, or its header is damaged.
    """
    try:
        with path.open("rb") as file:
            return _read(path, file, path.stat().st_size)
    except FileNotFoundError as error:
        raise NotFound(f"{path} does not exist") from error
    except OSError as error:
        raise InvalidModel(f"{path} cannot be read: {error.strerror}") from error


def _read(path: Path, file: BinaryIO, size: int) -> PlanFile:
    start = file.read(_LENGTH + 1)
    offset, metadata = 0, {}
    if start[:4] not in _BACKENDS:
        length = int.from_bytes(start[:_LENGTH], "little", signed=True)
        if not start:
            raise InvalidModel(f"{path} is empty: copy or export it again")
        if start[_LENGTH:] != b"{":
            raise InvalidModel(
                f"{path} is not a TensorRT engine (it begins with {start[:4]!r}): give an engine "
                "of TensorRT 10 or newer, or an .engine file of Ultralytics"
            )
        offset = _LENGTH + length
        if not 2 <= length <= min(_LONGEST_HEADER, size - _LENGTH - _PLAN_START):
            raise InvalidModel(
                f"{path} is damaged (it has {size} bytes, but a header of {length}): copy or "
                "export it again"
            )
        file.seek(_LENGTH)
        metadata = _metadata(path, file.read(length))
    file.seek(offset)
    plan = file.read(_PLAN_START)
    if len(plan) < _PLAN_START or plan[:4] not in _BACKENDS:
        raise InvalidModel(
            f"{path} has no TensorRT plan at byte {offset}. The file is damaged: copy or export "
            "it again"
        )
    known = plan[4:8] == bytes(4)
    major, minor, patch, build = plan[24:28]
    version = (major, minor, patch, build) if known else None
    return PlanFile(path, offset, _BACKENDS[plan[:4]], version, metadata)


class _Header(BaseModel):
    """The header's fields that Fovea uses. Other fields are kept unchanged."""

    model_config = ConfigDict(strict=True, extra="allow")

    task: str = Field("", max_length=32)
    names: dict[str, str] | list[str] | None = None
    stride: int = Field(32, ge=1, le=512)
    imgsz: Annotated[list[_Side], Field(min_length=2, max_length=2)] | None = None
    batch: int = Field(1, ge=1, le=1 << 16)


def _metadata(path: Path, header: bytes) -> dict[str, str]:
    try:
        read = _Header.model_validate_json(header).model_dump(exclude_unset=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"])) or "the whole"
        raise InvalidModel(
            f"the header of {path} is damaged ({field}: {first['msg']}): copy or export it again"
        ) from error
    metadata = {key: v if isinstance(v, str) else json.dumps(v) for key, v in read.items()}
    if "names" in metadata and labels_from_metadata(metadata, None) is None:
        raise InvalidModel(
            f"the header of {path} is damaged (names: class ids must be 0, 1, 2, ...): copy or "
            "export it again"
        )
    return metadata
