"""What a build is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fovea_engines.backends.registry import (
    DEFAULT_CPU_BACKEND,
    DISTRIBUTIONS,
    BackendInfo,
    available_backends,
)
from fovea_engines.digest import json_sha256
from fovea_engines.repository import check_name
from fovea_preprocess.errors import BackendUnavailable, InvalidOption
from fovea_preprocess.spec import PreprocessSpec

# Raised whenever the same source and options would give another engine: old ones are then rebuilt.
BUILD_FORMAT = 1
MAX_BATCH = 1024
MAX_SIDE = 8192


@dataclass(frozen=True, slots=True)
class BuildPlan:
    """One build, complete and checked before it begins.

    Attributes:
        source: the ONNX file.
        name: of the model in the repository.
        repository: its root folder; made when it is not there.
        backend: "openvino" or "onnxruntime".
        size: (height, width) of the input, pixels; None takes the model's own.
        max_batch: most rows one call may carry, 1 to 1024.
        labels: class names by id; None takes the model's own.
        family: head family; None recognises it.
        images: folder of pictures for the agreement check; None draws some.

    Raises:
        InvalidOption: on construction, when a value is out of its range.
        BackendUnavailable: likewise, when the backend is not to be had here.
    """

    source: Path
    name: str
    repository: Path
    backend: str = DEFAULT_CPU_BACKEND
    size: tuple[int, int] | None = None
    max_batch: int = 1
    labels: tuple[str, ...] | None = None
    family: str | None = None
    images: Path | None = None

    def __post_init__(self) -> None:
        check_name(self.name)
        if self.backend not in DISTRIBUTIONS:
            raise InvalidOption(
                f"backend is {self.backend!r}; it must be one of {', '.join(DISTRIBUTIONS)}"
            )
        if (problem := self._backend.problem) is not None:
            raise BackendUnavailable(f"backend {self.backend} cannot be used: {problem}")
        if not 1 <= self.max_batch <= MAX_BATCH:
            raise InvalidOption(f"max_batch is {self.max_batch}; it must be from 1 to {MAX_BATCH}")
        if self.size is not None and not all(1 <= side <= MAX_SIDE for side in self.size):
            raise InvalidOption(f"size is {self.size}; both sides must be from 1 to {MAX_SIDE}")

    @property
    def backend_version(self) -> str:
        """Version of the runtime that will compile."""
        return self._backend.version or ""

    def content_key(self, onnx_sha256: str, preprocess: PreprocessSpec | None) -> str:
        """Sha256 over everything the engine follows from; equal keys build equal engines.

        Args:
            onnx_sha256: of the source.
            preprocess: what the head's family asks for; None without a family.
        """
        return json_sha256(
            {
                "format": BUILD_FORMAT,
                "onnx": onnx_sha256,
                "backend": [self.backend, self.backend_version],
                "size": self.size,
                "max_batch": self.max_batch,
                "labels": self.labels,
                "family": self.family,
                "preprocess": None if preprocess is None else preprocess.digest,
            }
        )

    @property
    def _backend(self) -> BackendInfo:
        return next(info for info in available_backends() if info.name == self.backend)
