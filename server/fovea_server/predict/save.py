"""Writes what is found on many images into a folder, and goes on where a run was interrupted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from fovea_client import ImageError, ImageResult
from fovea_server.predict.answers import answers
from fovea_server.predict.entry import Entry
from fovea_server.predict.findings import skeleton_of
from fovea_server.predict.formats.annotated import Annotated
from fovea_server.predict.formats.registry import ANNOTATED, WRITERS
from fovea_server.predict.journal import Journal
from fovea_server.predict.predictors import Predicting, Predictor
from fovea_server.predict.sources import Source


@dataclass(slots=True)
class Tally:
    """Numbers of images: all that are answered, those that failed, and those of an earlier run."""

    images: int = 0
    failed: int = 0
    before: int = 0

    def add(self, entry: Entry) -> None:
        """Count one more."""
        self.images += 1
        self.failed += isinstance(entry.found, ImageError)


def resumed(journal: Journal, sources: Sequence[Source]) -> tuple[Tally, Sequence[Source], int]:
    """Read how far an earlier run came.

    Returns its tally, the sources that are left, and how many images of the first of them are done:
    nobody knows of a video whether the last frame was the last.
    """
    tally, last, of_last, files = Tally(), None, 0, 0
    for entry in journal.read(sources):
        tally.add(entry)
        if entry.source is not last:
            last, of_last, files = entry.source, 0, files + 1
        of_last += 1
    tally.before = tally.images
    if last is not None and last.is_video:
        return tally, sources[files - 1 :], of_last
    return tally, sources[files:], 0


def save(
    predictor: Predictor,
    model: Predicting,
    sources: Sequence[Source],
    formats: Sequence[str],
    folder: Path,
    journal: Journal,
    done: Callable[[Tally, Entry | None], None],
) -> Tally:
    """Predict all images that the journal does not have, and write all formats.

    `done` is told the tally so far, once before the first image and with the entry after each.
    """
    tally, left, of_first = resumed(journal, sources)
    done(tally, None)
    with ExitStack() as stack:
        annotated = None
        if ANNOTATED in formats:
            annotated = stack.enter_context(Annotated(folder, model))
        # The journal grows meanwhile: what is known ends where it ended.
        first = (entry for entry in journal.read(sources) if entry.source is left[0])
        draw = None if annotated is None else annotated.draw
        found = answers(predictor, left, draw=draw, known=islice(first, of_first))
        for answer in stack.enter_context(closing(found)):
            if annotated is not None:
                annotated.write(answer.entry, answer.drawn)
            if answer.is_new:
                journal.add(answer.entry)
                tally.add(answer.entry)
                done(tally, answer.entry)
        if annotated is not None:
            annotated.finish()
    model = _with_skeleton(model, journal.read(sources))
    for name in formats:
        if name in WRITERS:
            WRITERS[name](journal.read(sources), sources, model, folder)
    journal.complete()
    return tally


def _with_skeleton(model: Predicting, entries: Iterable[Entry]) -> Predicting:
    """Complete the model by the answers: a server may know no more than the number of points."""
    if model.task != "pose" or model.skeleton is not None:
        return model
    results = (entry.found for entry in entries if isinstance(entry.found, ImageResult))
    return replace(model, skeleton=next(filter(None, map(skeleton_of, results)), None))
