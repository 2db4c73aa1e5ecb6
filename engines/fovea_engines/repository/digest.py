"""Computes digests of files and values."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from fovea_preprocess.errors import NotFound


def file_sha256(path: Path) -> str:
    """Return the sha256 of a file's bytes, as hex; `NotFound` if there is no such file."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError as error:
        raise NotFound(f"{path} is not there") from error


def json_sha256(value: Any) -> str:
    """Return the sha256 of a value's canonical JSON form, as hex."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
