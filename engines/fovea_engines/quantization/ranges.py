"""Stores the ranges of a network's tensors and their origin."""

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
# Raised whenever the same images would give other ranges.
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Origin:
    """Identifies the source of ranges; they are valid only for it.

    `model` and `images` are sha256 of bytes, `preprocess` is the digest of the `PreprocessSpec`.
    """

    model: str
    preprocess: str
    images: str
    method: Method
    format: int = _FORMAT

    def difference(self, other: Origin) -> str | None:
        """Describe the first difference to another origin; None when there is none."""
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
    """Lowest and highest value of each tensor; the interval always contains zero.

    `remarks` say what the images lack, and what to do; there are none in files of older builds.
    """

    origin: Origin
    count: int
    tensors: Mapping[str, tuple[float, float]]
    remarks: tuple[str, ...] = ()

    def encode(self) -> bytes:
        """Write the ranges as JSON."""
        return json.dumps(asdict(self), indent=1).encode() + b"\n"

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file of `encoded`; InvalidOption where it holds no ranges."""
        try:
            ranges: Self = _ADAPTER.validate_json(path.read_bytes(), strict=True)
        except FileNotFoundError as error:
            raise NotFound(f"{path} is not there") from error
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
