"""Writes `locks/`: the versions of constraints.txt, with the hashes of all their files.

    python -m tools.locks

pip takes no hashes from a file of constraints: it would then ask for those of the project itself.
So there is a file of requirements for each way to install Fovea. uv finds what each of them needs
on every supported Python and platform.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "locks"
_SWITCHED = ("frigate", "oidc", "otel")
EXTRAS: Mapping[str, tuple[str, ...]] = {
    # Tokens, traces and Frigate cost nothing until they are switched on: the images have what they
    # need.
    "serve": _SWITCHED,
    "remote": (*_SWITCHED, "remote"),
    "ray": (*_SWITCHED, "ray"),
    "rtx": (*_SWITCHED, "rtx"),
    "streams": (*_SWITCHED, "streams"),
    "tensorrt": (*_SWITCHED, "tensorrt"),
}
"""File -> extras of the project that it installs, without the project."""
GROUPS = ("build", "sbom", "supply", "cuda-headers", "pycuda", "tensorrt-build")
"""Files with the dependency groups of their names."""

# trackers asks for opencv-python, whose files are those of opencv-python-headless, but take libGL.
_OVERRIDES = "opencv-python; sys_platform == 'none'\n"

_UV = (
    *("uv", "pip", "compile", "--quiet", "--constraint=constraints.txt", "--override=-"),
    *("--universal", "--python-version=3.11", "--generate-hashes"),
    # Without the names of machines.
    *("--no-header", "--no-annotate", "--no-emit-index-url"),
)


def write_all() -> None:
    """Write every file anew; what constraints.txt does not pin stays as it was."""
    wanted = {
        name: ("pyproject.toml", *(f"--extra={extra}" for extra in extras))
        for name, extras in EXTRAS.items()
    }
    wanted |= {group: (f"--group={group}",) for group in GROUPS}
    for name, options in wanted.items():
        output = f"--output-file={FOLDER / name}.txt"
        subprocess.run([*_UV, *options, output], cwd=ROOT, check=True, input=_OVERRIDES, text=True)


if __name__ == "__main__":
    write_all()
