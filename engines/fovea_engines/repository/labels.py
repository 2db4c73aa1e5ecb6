"""Reads and writes files with class names, one in each line, like Triton's `label_filename`."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from importlib.resources import as_file, files
from pathlib import Path

from fovea_engines.repository.files import text_of
from fovea_preprocess.errors import InvalidOption, NotFound

LABELS_FILE = "labels.txt"
LABEL_SETS: Mapping[str, int] = {"coco": 80, "coco91": 91, "imagenet": 1000}
"""Name of each set of class names that ships with Fovea -> number of its class names.

The file label_sets/NAME.txt has the class names.
"""


def find_labels(name: str) -> tuple[str, ...]:
    """Read the class names of a set in `LABEL_SETS`, or of a file.

    Raises:
        NotFound: the file does not exist.
        InvalidOption: the file is not a text file with class names, or is empty.
    """
    if name in LABEL_SETS:
        with as_file(files(__package__) / "label_sets" / f"{name}.txt") as path:
            return read_labels(path)
    if not Path(name).exists():
        close = get_close_matches(name.lower(), LABEL_SETS, 1)
        meant = f"did you mean {close[0]}?" if close else "give a text file with one label per line"
        raise NotFound(
            f"--labels {name} is neither a file nor one of {', '.join(LABEL_SETS)}: {meant}"
        )
    if Path(name).suffix in (".yaml", ".yml", ".json"):
        raise InvalidOption(
            f"--labels {name} is not a label set: use a text file with one label per line"
        )
    return read_labels(Path(name))


def set_of(classes: int | None) -> str | None:
    """Return the name of the set that has this number of class names, or None if no set has it."""
    return next((name for name, count in LABEL_SETS.items() if count == classes), None)


def read_labels(path: Path) -> tuple[str, ...]:
    """Read the class names in a file. Line i has the name of class id i, counted from 0.

    Blank lines at the end are ignored.

    Raises:
        NotFound: the file does not exist.
        InvalidOption: the file is not text, or is empty.
    """
    try:
        text = text_of(path.read_bytes())
    except FileNotFoundError as error:
        raise NotFound(f"{path} does not exist") from error
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidOption(
            f"{path} is not a text file of labels: write one label per line"
        ) from error
    if not text.strip():
        raise InvalidOption(f"{path} is empty: write one label per line")
    return tuple(line.strip() for line in text.rstrip().splitlines())


def labels_text(labels: tuple[str, ...]) -> str:
    """Return the content of a file with class names for `read_labels`."""
    return "".join(f"{' '.join(label.split())}\n" for label in labels)
