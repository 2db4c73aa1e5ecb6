"""Class names as a text file, one a line, as Triton's `label_filename` has them."""

from __future__ import annotations

from pathlib import Path

from fovea_preprocess.errors import InvalidOption, NotFound

LABELS_FILE = "labels.txt"


def read_labels(path: Path) -> tuple[str, ...]:
    """Class names by id; blank lines at the end do not count.

    Raises:
        NotFound: there is no such file.
        InvalidOption: it is not text, or has no line.
    """
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
    """The inverse of `read_labels`."""
    return "".join(f"{' '.join(label.split())}\n" for label in labels)
