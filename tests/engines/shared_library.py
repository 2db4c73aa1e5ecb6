"""Shared libraries that tests compile from a few lines of C."""

import subprocess
from pathlib import Path

from tests.system import program


def compile_library(path: Path, source: str, *options: str) -> Path:
    """Compile C++ into a shared library at `path`; the test is skipped without a compiler."""
    compiler = program("g++", "c++", package="g++")
    command = [compiler, "-x", "c++", "-shared", "-fPIC", *options, "-o", str(path), "-"]
    made = subprocess.run(command, input=source, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    return path
