"""Stores the INT8 ranges of a model's tensors, and the origin of the ranges."""

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
# Version of the calibration's code. It is increased when the same images give different ranges.
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Origin:
    """The inputs from which ranges were measured. Ranges are valid only for these inputs.

    Attributes:
        model: SHA-256 of the model file and its external data.
        preprocess: SHA-256 of the `PreprocessSpec`.
        images: SHA-256 of the bytes of all image files in order.
        method: method that computed the ranges.
        format: version of the calibration's code.
    """

    model: str
    preprocess: str
    images: str
    method: Method
    format: int = _FORMAT

    def difference(self, other: Origin) -> str | None:
        """Return a text about the first difference from another origin.

        If both are equal, return None.
        """
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
    """The range of each tensor. A range always contains zero.

    Attributes:
        origin: inputs from which the ranges were measured.
        count: number of calibration images.
        tensors: name of each tensor -> (smallest value, largest value).
        remarks: texts about problems with the images, with advice; empty in files of older builds.
    """

    origin: Origin
    count: int
    tensors: Mapping[str, tuple[float, float]]
    remarks: tuple[str, ...] = ()

    def encode(self) -> bytes:
        """Return the ranges as JSON, in the form of the file `RANGES_FILE`."""
        return json.dumps(asdict(self), indent=1).encode() + b"\n"

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read ranges from a file that has the content of `encode`.

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
                f"{path} is not a calibration file ({where}: {first['msg']}): calibrate again"
            ) from error
        for name, (low, high) in ranges.tensors.items():
            if not (math.isfinite(low) and math.isfinite(high) and low <= 0 <= high):
                raise InvalidOption(
                    f"{path}: the range of {name!r} is invalid ({low} to {high}): calibrate again"
                )
        return ranges


_ADAPTER: TypeAdapter[Any] = TypeAdapter(Ranges)
