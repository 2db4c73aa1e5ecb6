"""The members of a TensorRT, from its real Python bindings over stub libraries."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.engines.shared_library import compile_library

DUMP = Path(__file__).parent / "dump.py"
BINDINGS = {
    "10.16": ("tensorrt_bindings", "tensorrt-10"),
    "11.4": ("tensorrt_bindings", "tensorrt-11"),
    "rtx": ("tensorrt_rtx_bindings", None),
}
"""Version -> its module, and the folder of the virtual environment that `make` put it into."""

# What the bindings take from TensorRT's own libraries, which are on NVIDIA's index alone.
LIBRARIES = ("nvinfer", "nvinfer_plugin", "nvonnxparser")
FUNCTIONS = (
    "createInferBuilder_INTERNAL",
    "createInferRefitter_INTERNAL",
    "createInferRuntime_INTERNAL",
    "createNvOnnxParserRefitter_INTERNAL",
    "createNvOnnxParser_INTERNAL",
    "getBuilderPluginRegistry",
    "getNvOnnxParserVersion",
    "getPluginRegistry",
    "initLibNvInferPlugins",
)


@dataclass(frozen=True)
class Surface:
    """Dotted name of a member -> what `dump.py` says of it."""

    members: dict[str, dict[str, Any]]

    def __contains__(self, member: str) -> bool:
        return member in self.members

    def type_of(self, member: str | None) -> str | None:
        """The class that a member is or gives, where it is one of TensorRT's."""
        name = self.members.get(member or "", {}).get("type")
        # The parser's interfaces are called otherwise in Python.
        for candidate in (name, (name or "").removeprefix("I")):
            if candidate and self.members.get(candidate, {}).get("type") == candidate:
                return candidate
        return None

    def parameters(self, member: str) -> list[str]:
        return self.members[member]["parameters"]


def compile_stubs(folder: Path) -> None:
    source = "".join(f'extern "C" void* {name}() {{ return 0; }}\n' for name in FUNCTIONS)
    for library in LIBRARIES:
        for version in ("10", "11"):
            compile_library(folder / f"lib{library}.so.{version}", source)


def run_python(version: str, stubs: Path, *arguments: str) -> str:
    """What a program prints that may import the bindings of that TensorRT."""
    module, folder = BINDINGS[version]
    paths = [] if folder is None else [str(Path(sys.prefix) / folder)]
    if paths and not Path(paths[0], module).is_dir():
        pytest.skip(f"the bindings of TensorRT {version} are not installed: `make test-real` does")
    paths += sys.path
    done = subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | {"LD_LIBRARY_PATH": str(stubs), "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def read_surface(version: str, stubs: Path) -> Surface:
    return Surface(json.loads(run_python(version, stubs, str(DUMP), BINDINGS[version][0])))
