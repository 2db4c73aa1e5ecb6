"""Measures text recognition and attribute models. A table contains the labels of the images."""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple, Self

from fovea_engines.engine import Engine
from fovea_engines.evaluation.samples import read_image
from fovea_engines.progress import Progress
from fovea_engines.repository.accuracy import AttributeAccuracy, TextAccuracy
from fovea_engines.repository.files import file_sha256, json_sha256, text_of
from fovea_engines.results.attributes import Attribute, Attributes
from fovea_engines.results.class_names import class_name
from fovea_engines.results.options import MAX_TOP_K, PredictOptions
from fovea_engines.results.reading import ReadText, edit_distance
from fovea_preprocess.errors import InvalidOption, NotFound

SUFFIXES: Final = (".csv", ".tsv", ".txt")

# Names that public datasets give to a column of texts.
_TEXTS = ("text", "words")
# Word in a column -> whether the class is present. For absent classes, CelebA has -1 and PA-100K
# has 0.
_PRESENT: Mapping[str, bool] = {"1": True, "0": False, "-1": False}
_SHOWN = 8
_ALL_CLASSES = PredictOptions(top_k=MAX_TOP_K)


class Judged(NamedTuple):
    """The result of one classifier: names of its classes, and the names that apply to an image."""

    names: frozenset[str]
    likely: frozenset[str]


Read = Callable[[Path], str]
Judge = Callable[[Path], Mapping[str, Judged]]
"""Function that returns a dict for an image: name of each classifier -> its result."""


@dataclass(frozen=True, slots=True, eq=False)
class LabelTable:
    """Images that a table labels. Each image has a word in every column.

    Attributes:
        path: file of the table.
        columns: names of the columns.
        rows: file of an image -> its words.
    """

    path: Path
    columns: tuple[str, ...]
    rows: Mapping[Path, tuple[str, ...]]

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files of the images."""
        return tuple(self.rows)

    def keep_images(self, paths: Container[Path]) -> Self:
        """Return the dataset with only these images."""
        return replace(self, rows={path: row for path, row in self.rows.items() if path in paths})

    def match_classes(self, labels: Sequence[str] | None, num_classes: int | None = None) -> Self:
        """Return the dataset unchanged. `measure` compares its words with the model's names."""
        return self

    def sha256(self) -> str:
        """Return the SHA-256 of all images and their words as hex digits."""
        rows = [(file_sha256(path), row) for path, row in self.rows.items()]
        return json_sha256([self.columns, rows])


class TextLabels(LabelTable):
    """Images of lines of text. The only column of the table contains the texts."""

    __slots__ = ()

    def measure(self, read: Read, progress: Progress | None = None) -> TextAccuracy:
        """Measure how many texts are right, and the edit distances of the wrong texts."""
        progress = progress or Progress()
        exact = edits = characters = 0
        similarity = 0.0
        with progress.phase("accuracy"):
            for image, (wanted,) in progress.each(self.rows.items(), len(self.rows)):
                found = read(image)
                distance = edit_distance(found, wanted)
                exact += not distance
                edits += distance
                characters += len(wanted)
                similarity += 1 - distance / max(len(found), len(wanted), 1)
        count = len(self.rows)
        return TextAccuracy(count, exact / count, similarity / count, edits / max(characters, 1))


class AttributeLabels(LabelTable):
    """Images with attributes. A column is a classifier with class names, or a class with 1 and 0.

    Empty words are ignored.
    """

    __slots__ = ()

    def measure(self, judge: Judge, progress: Progress | None = None) -> AttributeAccuracy:
        """Measure how often each attribute is right, and how often all of an image are right.

        Raises:
            InvalidOption: the model has no such attribute or class.
        """
        progress = progress or Progress()
        right: dict[str, list[bool]] = defaultdict(list)
        whole = 0
        with progress.phase("accuracy"):
            for image, words in progress.each(self.rows.items(), len(self.rows)):
                found = judge(image)
                hits = {
                    column: _is_right(self.path, column, word.strip(), found)
                    for column, word in zip(self.columns, words, strict=True)
                    if word.strip()
                }
                whole += all(hits.values())
                for column, hit in hits.items():
                    right[column].append(hit)
        if not right:
            raise InvalidOption(
                f"{self.path} has no label in any column: write the labels into the columns"
            )
        shares = {column: sum(hits) / len(hits) for column, hits in right.items()}
        mean = sum(shares.values()) / len(shares)
        return AttributeAccuracy(len(self.rows), mean, whole / len(self.rows), shares)


def read_table(data: Path, images: Path | None = None) -> TextLabels | AttributeLabels:
    """Read PaddleOCR's lines of path, tab and text, or a CSV file with a header.

    The first column of a CSV file contains the paths of the images. If there is only one other
    column and its name is "text" or "words", it contains texts. Otherwise all other columns are
    attributes. Paths are relative to `images`, by default the directory of the file.

    Raises:
        InvalidOption: the file is malformed or has no labels.
        NotFound: an image is missing.
    """
    folder = data.parent if images is None else images
    try:
        with io.StringIO(text_of(data.read_bytes()), newline="") as file:
            header = next(csv.reader(file), []) if data.suffix == ".csv" else ["image", "text"]
            lines = csv.reader(file) if data.suffix == ".csv" else _split_tabs(file)
            rows = {
                _image(data, folder, number, line, len(header)): tuple(line[1:])
                for number, line in enumerate(lines, 2 if data.suffix == ".csv" else 1)
                if line
            }
    except (UnicodeDecodeError, csv.Error) as error:
        raise InvalidOption(f"{data} is not a table of labels in UTF-8: {error}") from error
    columns = tuple(name.strip() for name in header[1:])
    if not columns or not rows:
        raise InvalidOption(
            f"{data} has no labels: write a first line with the column names, such as image,text, "
            "and a line for each image"
        )
    kind = TextLabels if len(columns) == 1 and columns[0].lower() in _TEXTS else AttributeLabels
    return kind(data, columns, rows)


def _split_tabs(lines: Iterator[str]) -> Iterator[list[str]]:
    for line in lines:
        yield line.rstrip("\r\n").split("\t", 1) if line.strip() else []


def _image(data: Path, folder: Path, number: int, line: list[str], columns: int) -> Path:
    if len(line) != columns:
        form = "a path, a tab and the text" if data.suffix != ".csv" else f"{columns} columns"
        raise InvalidOption(f"{data}, line {number}: the line must have {form}")
    if not (path := folder / line[0].strip()).is_file():
        raise NotFound(
            f"{data}, line {number}: the image {path} does not exist: give the folder of the "
            "images with --images"
        )
    return path


def read_with(engine: Engine) -> Read:
    """Return a function that recognises the text in an image with an engine."""

    def read(image: Path) -> str:
        found = engine.predict(read_image(image))
        assert isinstance(found, ReadText), "the task was checked"
        return "".join(found.characters(engine.labels))

    return read


def judge_with(engine: Engine) -> Judge:
    """Return a function that predicts the attributes of an image with an engine."""

    def judge(image: Path) -> dict[str, Judged]:
        found = engine.predict(read_image(image), _ALL_CLASSES)
        assert isinstance(found, Attributes), "the task was checked"
        return {each.name: _judge_attribute(each, engine.labels) for each in found.found}

    return judge


def _judge_attribute(found: Attribute, labels: Sequence[str] | None) -> Judged:
    ids = range(found.first, found.first + len(found.probabilities))
    return Judged(
        frozenset(class_name(labels, each) for each in ids),
        frozenset(class_name(labels, each) for each in found.likely),
    )


def _is_right(path: Path, column: str, word: str, found: Mapping[str, Judged]) -> bool:
    if (own := found.get(column)) is not None:
        if word in own.names:
            return own.likely == {word}
        raise InvalidOption(
            f"{path} has {word!r} in the column {column}, but the model only has "
            f"{_join_names(own.names)}: use the model's names, or rename the classes with `fovea "
            "build --labels`"
        )
    if not any(column in each.names for each in found.values()):
        names = {name for each in found.values() for name in each.names}
        raise InvalidOption(
            f"{path} has the column {column!r}, which is neither an attribute of the model "
            f"({_join_names(found)}) nor a class ({_join_names(names)})"
        )
    if word not in _PRESENT:
        raise InvalidOption(
            f"{path} has {word!r} in the column {column}, which is a class: write 1 or 0"
        )
    return any(column in each.likely for each in found.values()) == _PRESENT[word]


def _join_names(names: Iterable[str]) -> str:
    shown = sorted(names)
    return ", ".join([*shown[:_SHOWN], *(["..."] if len(shown) > _SHOWN else [])])
