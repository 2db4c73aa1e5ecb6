"""Imports packages that this one does not require."""

from __future__ import annotations

import importlib
from typing import Any


def imported(module: str, package: str) -> Any:
    """Return a module; where it is not installed, the ImportError says which package has it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0]:
            raise
        message = f"{package} is not installed: pip install {package}"
        raise ImportError(message, name=error.name) from error
