"""Makes the pictures of docs/ that commands draw: the terminal of a build, and the plot of bench.

    python -m tools.pictures ../shared [build] [bench]

Both show the speed of this machine: run it where nothing else does.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

DOCS = Path(__file__).parents[1] / "docs"
MODEL = "yolov8n"
BUILD = f"fovea build {MODEL}.onnx --precision auto --calibration images/"
BENCH = f"fovea bench {MODEL} --images images/ --clients 1,4,16 --plot bench.svg"
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


def main() -> None:
    """Make the pictures that are named, or both."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("shared", type=Path, help="Folder with models/ and data/.")
    parser.add_argument("pictures", nargs="*", default=["build", "bench"])
    asked = parser.parse_args()
    shared = asked.shared.resolve()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / f"{MODEL}.onnx").symlink_to(shared / "models" / f"{MODEL}.onnx")
        (folder / "images").symlink_to(shared / "data" / "coco64" / "calibration")
        if "build" in asked.pictures:
            (DOCS / "build.svg").write_text(terminal(BUILD, run(BUILD, folder)))
        else:
            run(f"fovea build {MODEL}.onnx", folder)
        if "bench" in asked.pictures:
            run(BENCH, folder)
            (DOCS / "bench.svg").write_bytes((folder / "bench.svg").read_bytes())


if __name__ == "__main__":
    main()
