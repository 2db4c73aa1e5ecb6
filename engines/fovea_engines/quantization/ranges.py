"""Stores the ranges of a model's tensors, and their origin."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

from pydantic import TypeAdapter, ValidationError

from fovea_engines.repository.figures import Method
from fovea_preprocess.errors import InvalidOption, NotFound

RANGES_FILE = "calibration.json"
# Increased when the same images would give other ranges.
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of ranges. Ranges are valid only for their origin.

    Attributes:
        model: SHA-256 of the model file.
        preprocess: digest of the `PreprocessSpec`.
        images: SHA-256 of the bytes of the images.
        method: method that derived the ranges.
        format: version of the calibration.
    """

    model: str
    preprocess: str
    images: str
    method: Method
    format: int = _FORMAT

    def difference(self, other: Origin) -> str | None:
        """Describe the first difference to another origin, or return None."""
        words = {
            "model": "another model",
            "preprocess": "another preprocessing",
            "images": "other images",
            "method": f"the method {self.method} instead of {other.method}",
            "format": "another version of Fovea",
        }
        differ = (f.name for f in fields(self) if getattr(self, f.name) != getattr(other, f.name))
        return next((words[name] for name in differ), None)


@dataclass(frozen=True, slots=True)
class Ranges:
    """The smallest and largest value of each tensor. The range always contains zero.

    Attributes:
        origin: origin of the ranges.
        count: number of calibration images.
        tensors: name of a tensor -> (smallest, largest).
        remarks: deficiencies of the images, with advice; empty in files of older builds.
    """

    origin: Origin
    count: int
    tensors: Mapping[str, tuple[float, float]]
    remarks: tuple[str, ...] = ()

    def encode(self) -> bytes:
        """Return the ranges as JSON."""
        return json.dumps(asdict(self), indent=1).encode() + b"\n"

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file with the content of `encode`.

        Raises:
            NotFound: the file does not exist.
            InvalidOption: the file does not contain valid ranges.
        """
        try:
            ranges: Self = _ADAPTER.validate_json(path.read_bytes(), strict=True)
        except FileNotFoundError as error:
            raise NotFound(f"{path} does not exist") from error
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            raise InvalidOption(
                f"{path} holds no calibration ({where}: {first['msg']}): calibrate again"
            ) from error
        for name, (low, high) in ranges.tensors.items():
            if not (math.isfinite(low) and math.isfinite(high) and low <= 0 <= high):
                raise InvalidOption(
                    f"{path}: the range of {name!r} is {low} to {high}: calibrate again"
                )
        return ranges


_ADAPTER: TypeAdapter[Any] = TypeAdapter(Ranges)
