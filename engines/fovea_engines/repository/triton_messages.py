"""Loads Triton's own protobuf messages from tritonclient."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from types import ModuleType


@cache
def model_config_messages() -> ModuleType:
    """Return the module with `ModelConfig`, the schema of config.pbtxt.

    It is loaded by its path: importing it by name runs `tritonclient.grpc`, which imports all of
    grpc (0.27 s and 37 MB), and the schema needs none of it.
    """
    package = importlib.util.find_spec("tritonclient")
    assert package is not None, "tritonclient is a dependency"
    assert package.submodule_search_locations is not None, "tritonclient is a package"
    path = Path(next(iter(package.submodule_search_locations))) / "grpc" / "model_config_pb2.py"
    spec = importlib.util.spec_from_file_location("model_config_pb2", path)
    assert spec is not None, "it is a Python file"
    assert spec.loader is not None, "it is a Python file"
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
