"""Shows the results of `fovea eval`: totals, figures of each class, and confusions."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fovea_engines.evaluation.labels import split_of
from fovea_engines.repository.accuracy import Accuracy, AnyAccuracy
from fovea_preprocess.text import counted
from fovea_server.offline.chosen import LabelSelection
from fovea_server.offline.confusion import Confusion

_CLASSES_SHOWN = 20
# Largest number of classes for which the confusion matrix is printed, because a terminal has no
# room for more. If there are more classes, the most frequent confusions are listed.
_MATRIX_CLASSES = 8
_CONFUSIONS_SHOWN = 10


@dataclass(frozen=True, slots=True)
class EvalReport:
    """The accuracy of one version of a model.

    Attributes:
        model: name of the model.
        version: version of the model.
        backend: backend of the engine; None if the server does not report it.
        precision: precision of the engine; None if the server does not report it.
        accuracy: the measured accuracy.
        chosen: the labels that were measured.
        confusion: the confusion matrix; None if the task has none.
        best: True if the confidence for the matrix is the one with the highest mean F1; False if
            the user set it.
    """

    model: str
    version: str
    backend: str | None
    precision: str | None
    accuracy: AnyAccuracy
    chosen: LabelSelection
    confusion: Confusion | None
    best: bool

    @property
    def split(self) -> str | None:
        """The split of the data set from which the images are, for example "val"."""
        return split_of(self.chosen.labelled)

    @property
    def title(self) -> str:
        """A title with the model, the images, and the number of classes that are not measured."""
        engine = f", {self.backend} {self.precision}" if self.backend else ""
        images = counted(self.accuracy.images, "image")
        of = f" of {self.split}" if self.split else ""
        title = f"{self.model} version {self.version}{engine}: {images}{of}"
        if left_out := len(self.chosen.left_out):
            title += f", without {counted(left_out, 'class')} of the labels"
        return title

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain JSON types."""
        document: dict[str, Any] = {
            "model": self.model,
            "version": self.version,
            "backend": self.backend,
            "precision": self.precision,
            "split": self.split,
            **asdict(self.accuracy),
            "left_out": dict(self.chosen.left_out),
        }
        if (found := self.confusion) is not None:
            document["operating_point"] = {
                "confidence": found.confidence,
                "best_f1": self.best and found.confidence is not None,
                "precision": found.mean("precision"),
                "recall": found.mean("recall"),
                "f1": found.mean("f1"),
            }
            document["classes"] = {
                name: {
                    f"{found.unit}s": each.labelled,
                    "precision": each.precision,
                    "recall": each.recall,
                    "f1": each.f1,
                }
                for name, each in found.classes.items()
            }
            document["confusion"] = found.counts
        return document


def show(report: EvalReport) -> None:
    """Print the report as tables."""
    console, accuracy, found = Console(), report.accuracy, report.confusion
    title = report.title
    if isinstance(accuracy, Accuracy):
        title += f", measured by the overlap of {accuracy.compared}"
    console.print(Text(title, style="bold"))
    if report.split == "train":
        console.print(
            "The labels contain only the split train: if the model was trained on these images, "
            "its accuracy on new images is lower",
            soft_wrap=True,
        )
    if report.chosen.note:
        console.print(Text(report.chosen.note), soft_wrap=True)
    totals = Table(show_header=False)
    for label, value in accuracy.rows.items():
        totals.add_row(label, "none in the labels" if value is None else f"{value:.3f}")
    if found is not None:
        totals.add_row("precision", f"{found.mean('precision'):.3f}")
        totals.add_row("recall", f"{found.mean('recall'):.3f}")
        totals.add_row("F1", f"{found.mean('f1'):.3f}")
    console.print(totals)
    if found is not None and found.confidence is not None:
        why = "where the mean F1 of the classes is highest" if report.best else "set by --conf"
        console.print(
            f"precision, recall and F1 are means of the classes, at confidence {found.confidence:g}"
            f", {why}, and overlap .50",
            highlight=False,
            soft_wrap=True,
        )
    if accuracy.per_class:
        _show_classes(console, accuracy, found)
    if found is not None:
        _show_confusions(console, found)


def _show_classes(console: Console, accuracy: AnyAccuracy, found: Confusion | None) -> None:
    worst_first = sorted(accuracy.per_class.items(), key=lambda item: item[1])
    all_shown = len(worst_first) <= _CLASSES_SHOWN
    figure = accuracy.metric.split()[-1].removeprefix("m")
    extra = [] if found is None else [f"{found.unit}s", "precision", "recall"]
    table = Table("class" if all_shown else "weakest classes", figure)
    for column in extra:
        table.add_column(column, justify="right")
    for name, value in worst_first[:_CLASSES_SHOWN]:
        cells = [f"{value:.3f}"]
        if found is not None and (own := found.classes.get(name)) is not None:
            cells += [str(own.labelled), f"{own.precision:.3f}", f"{own.recall:.3f}"]
        table.add_row(Text(name), *cells)
    console.print(table)
    if (better := len(worst_first) - _CLASSES_SHOWN) > 0:
        console.print(
            f"not shown: {counted(better, 'better class')}; --json lists all classes",
            highlight=False,
        )


def _show_confusions(console: Console, found: Confusion) -> None:
    """Print the whole confusion matrix for few classes, or the most frequent confusions."""
    if len(names := found.names) <= _MATRIX_CLASSES:
        console.print("confusion matrix: rows are labels, columns are predictions")
        table = Table("")
        for name in names:
            table.add_column(Text(name), justify="right")
        for name in names:
            if row := found.counts.get(name):
                table.add_row(Text(name), *(str(row.get(other, "")) for other in names))
        console.print(table)
        return
    pairs = [
        (count, label, other)
        for label, row in found.counts.items()
        for other, count in row.items()
        if label != other and found.background not in (label, other)
    ]
    if not pairs:
        return
    console.print("confusions, the most frequent first")
    table = Table("labelled as", "found as", f"{found.unit}s")
    worst_first = sorted(pairs, key=lambda pair: (-pair[0], *pair[1:]))
    for count, label, other in worst_first[:_CONFUSIONS_SHOWN]:
        table.add_row(Text(label), Text(other), str(count))
    console.print(table)
