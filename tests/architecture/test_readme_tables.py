"""The tables of README and docs are those that benchmarks/tables.py makes of the figures."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_pages_show_the_committed_figures():
    command = [sys.executable, ROOT / "benchmarks" / "tables.py"]
    tables = subprocess.check_output(command, text=True).strip().split("\n\n")
    pages = (*["docs/precision.md"] * 3, "docs/triton.md", "docs/cluster.md")
    pages += ("docs/speed.md",) * 4
    assert len(tables) == len(pages)
    for page, table in zip(pages, tables, strict=True):
        assert f"\n\n{table}\n\n" in (ROOT / page).read_text(), f"{page} lacks:\n{table}"


def test_the_plot_shows_the_committed_figures():
    command = [sys.executable, ROOT / "benchmarks" / "plot.py"]
    plot = subprocess.check_output(command, text=True)
    assert plot == (ROOT / "docs" / "speed.svg").read_text()


def test_cells_that_were_reckoned_by_hand():
    """No formula of tables.py has a part in these; reckon them again where figures are new."""
    pages = ("precision", "triton")
    precision, triton = ((ROOT / "docs" / f"{page}.md").read_text() for page in pages)
    _, yolov8n = [line for line in precision.splitlines() if line.startswith("| yolov8n |")]
    # Images/s in the rounds: OpenVINO in FP32 34.0 36.1 35.1, bf16 40.5 62.9 63.6,
    # INT8 54.4 84.8 74.3, and `auto`, which chose INT8, 70.6 88.0 80.1.
    cells = "35.1 (34.0-36.1) | x1.74 (1.19-1.81) | x2.11 (1.60-2.35) | int8, x1.08 (1.04-1.30)"
    assert yolov8n.startswith(f"| yolov8n | {cells} | .430 | .434 |")
    # The README has these two in a sentence.
    sentence = "INT8 of yolov8n has 2.1 times the images/s of FP32 and .002 less mAP"
    assert sentence in (ROOT / "README.md").read_text()
    assert f"{cells} | .430 | .434 | .431 | .428 |" in yolov8n
    # 7235 by 25688 requests/s is .28; the median of .272 .290 .290 is .29.
    assert "| x0.29 (0.27-0.29) |" in triton
    # 2160, 2760, 4080, 4820, 4200, 6360 by 4990, 11360 and 8700.
    assert "| x0.43-0.55 | x0.36-0.42 | x0.48-0.73 |" in triton
