"""Reads and writes class names, one per line, as in Triton's `label_filename`."""

from __future__ import annotations

from pathlib import Path

from fovea_preprocess.errors import InvalidOption, NotFound

LABELS_FILE = "labels.txt"


def read_labels(path: Path) -> tuple[str, ...]:
    """Read class names by id, without blank lines at the end; `InvalidOption` if there are none."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise NotFound(f"{path} is not there") from error
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidOption(f"{path} is not a text file of labels, one a line") from error
    if not text.strip():
        raise InvalidOption(f"{path} is empty: it needs one label a line")
    return tuple(line.strip() for line in text.rstrip().splitlines())


def labels_text(labels: tuple[str, ...]) -> str:
    """Format class names for `read_labels`."""
    return "".join(f"{' '.join(label.split())}\n" for label in labels)
