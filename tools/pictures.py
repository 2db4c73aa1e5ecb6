"""Draws docs/build.svg: the terminal of a build.

    python -m tools.pictures ../shared/models/yolov8n.onnx ../shared/data/coco64/calibration

It shows the speed of this machine: run it where nothing else does.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

FILE = Path(__file__).parents[1] / "docs" / "build.svg"
WIDTH = 110


def run(command: str, folder: Path) -> str:
    """Run a command as in a terminal, and return what it prints."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    environment = os.environ | {"PATH": path, "COLUMNS": str(WIDTH), "FORCE_COLOR": "1"}
    return subprocess.check_output(command.split(), cwd=folder, env=environment, text=True)


def terminal(command: str, printed: str) -> str:
    """Draw a command and what it printed as SVG, in a font that the reader has."""
    with Path(os.devnull).open("w") as nowhere:
        console = Console(record=True, width=WIDTH, file=nowhere, force_terminal=True)
        console.print(f"$ {command}", style="bold", highlight=False)
        console.print(Text.from_ansi(printed.rstrip()))
    start, end = (CONSOLE_SVG_FORMAT.index(mark) for mark in ("    @font-face", "    .{unique_id}"))
    without = CONSOLE_SVG_FORMAT[:start] + CONSOLE_SVG_FORMAT[end:]
    return console.export_svg(title="", code_format=without)


def main(model: Path, images: Path) -> None:
    """Build the model in three precisions, and draw what the build prints."""
    command = f"fovea build {model.name} --precision auto --calibration images/"
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, model.name).symlink_to(model.resolve())
        Path(folder, "images").symlink_to(images.resolve())
        FILE.write_text(terminal(command, run(command, Path(folder))))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
