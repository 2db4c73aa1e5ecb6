"""Records durations of builds, to predict the next one."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from fovea_engines.backends.tensorrt.atomic import write_whole

# Only the newest are kept.
_MOST = 256


@dataclass(frozen=True, slots=True)
class BuildKey:
    """Identifies builds of about equal duration.

    Attributes:
        model: sha256 of the ONNX file.
        precision: "fp32", "fp16" or "int8".
        device: the GPU, or the compute capabilities that it was built for.
        version: name and version of the backend.
        options: options of the builder: level, profiles and the rest.
    """

    model: str
    precision: str
    device: str
    version: str
    options: str


@dataclass(frozen=True, slots=True)
class _Build:
    key: BuildKey
    seconds: float


_ADAPTER: TypeAdapter[list[_Build]] = TypeAdapter(list[_Build])


@dataclass(frozen=True, slots=True)
class Ledger:
    """A small file of build times. Its errors never fail a build.

    Attributes:
        file: JSON; created if missing, and replaced if damaged.
    """

    file: Path

    def seconds(self, key: BuildKey) -> float | None:
        """Return the duration of the latest such build; None without one."""
        return next((build.seconds for build in self._read() if build.key == key), None)

    def record(self, key: BuildKey, seconds: float) -> None:
        """Add a build; does nothing where the file cannot be written."""
        others = [build for build in self._read() if build.key != key]
        builds: list[dict[str, Any]] = [
            asdict(build) for build in [_Build(key, round(seconds, 1)), *others][:_MOST]
        ]
        with suppress(OSError):
            write_whole(self.file, json.dumps(builds, indent=1).encode())

    def _read(self) -> list[_Build]:
        """Return the builds, newest first."""
        try:
            return _ADAPTER.validate_json(self.file.read_bytes())
        except (OSError, ValidationError):
            return []


def duration(seconds: float) -> str:
    """Format seconds as "3 min 12 s"."""
    minutes, rest = divmod(round(seconds), 60)
    if not minutes:
        return f"{rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
