"""Reads and writes class names, one per line, like Triton's `label_filename`."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from importlib.resources import as_file, files
from pathlib import Path

from fovea_engines.repository.files import text_of
from fovea_preprocess.errors import InvalidOption, NotFound

LABELS_FILE = "labels.txt"
LABEL_SETS: Mapping[str, int] = {"coco": 80, "coco91": 91, "imagenet": 1000}
"""Sets of class names that many models share.

Name of the set, and of its file in label_sets/ -> number of names.
"""


def find_labels(name: str) -> tuple[str, ...]:
    """Read one of `LABEL_SETS`, or a file of labels.

    Raises:
        NotFound: the file does not exist.
        InvalidOption: the file is not a text file of labels.
    """
    if name in LABEL_SETS:
        with as_file(files(__package__) / "label_sets" / f"{name}.txt") as path:
            return read_labels(path)
    if not Path(name).exists():
        close = get_close_matches(name.lower(), LABEL_SETS, 1)
        meant = f"did you mean {close[0]}?" if close else "give a text file with a label a line"
        raise NotFound(
            f"--labels {name} is neither a file nor one of {', '.join(LABEL_SETS)}: {meant}"
        )
    if Path(name).suffix in (".yaml", ".yml", ".json"):
        raise InvalidOption(
            f"--labels {name} is not a label set: use a text file with one label per line"
        )
    return read_labels(Path(name))


def set_of(classes: int | None) -> str | None:
    """Return the name of the set with this number of labels, or None."""
    return next((name for name, count in LABEL_SETS.items() if count == classes), None)


def read_labels(path: Path) -> tuple[str, ...]:
    """Read class names, indexed by class id. Blank lines at the end are ignored.

    Raises:
        NotFound: the file does not exist.
        InvalidOption: the file is not text, or is empty.
    """
    try:
        text = text_of(path.read_bytes())
    except FileNotFoundError as error:
        raise NotFound(f"{path} does not exist") from error
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidOption(f"{path} is not a text file of labels, one a line") from error
    if not text.strip():
        raise InvalidOption(f"{path} is empty: it needs one label a line")
    return tuple(line.strip() for line in text.rstrip().splitlines())


def labels_text(labels: tuple[str, ...]) -> str:
    """Format class names in the form that `read_labels` reads."""
    return "".join(f"{' '.join(label.split())}\n" for label in labels)
