"""Writes the results of many images into a directory, and resumes an interrupted run."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Self

from fovea_client import ImageError
from fovea_server.offline.answers import Outcome, answers
from fovea_server.offline.entry import Entry
from fovea_server.offline.formats.annotated import Annotated
from fovea_server.offline.formats.registry import ANNOTATED, WRITERS
from fovea_server.offline.journal import Journal
from fovea_server.offline.predictors import ModelInfo, Predictor
from fovea_server.offline.sources import Source
from fovea_server.offline.tracked import VideoTracks


@dataclass(slots=True)
class Counts:
    """Numbers of images: in total, failed, and predicted by an earlier run."""

    images: int = 0
    failed: int = 0
    before: int = 0

    def add(self, entry: Entry) -> None:
        """Count the image of an entry."""
        self.images += 1
        self.failed += isinstance(entry.result, ImageError)


Done = Callable[[Counts, Entry | None], None]

# Number of replaced sources that are predicted between two rewrites of the journal. The number is
# larger if more than 100 times as many sources were replaced.
_SHARE = 500


@dataclass(frozen=True, slots=True)
class ResumedRun:
    """The progress of an earlier run.

    Attributes:
        counts: numbers of predicted images; images of `changed` are left out.
        left: sources that are not completely predicted.
        of_first: number of frames of the first source in `left` that are predicted already. If the
            journal ends with a video, this video counts as incomplete, because its last frame is
            not marked.
        changed: sources that were predicted, but whose files have been replaced since.
    """

    counts: Counts
    left: Sequence[Source]
    of_first: int
    changed: Sequence[Source]

    @classmethod
    def read(cls, journal: Journal, sources: Sequence[Source]) -> Self:
        """Read the progress from the journal."""
        counts, last, of_last, files = Counts(), None, 0, 0
        changed = list[Source]()
        for entry in journal.read(sources):
            if entry.source is not last:
                last, of_last, files = entry.source, 0, files + 1
                if entry.stamp != last.stamp:
                    changed.append(last)
            if not changed or changed[-1] is not last:
                counts.add(entry)
            of_last += 1
        counts.before = counts.images
        if last is not None and last.is_video:
            return cls(counts, sources[files - 1 :], of_last, changed)
        return cls(counts, sources[files:], 0, changed)


def save(
    predictor: Predictor,
    model: ModelInfo,
    sources: Sequence[Source],
    formats: Sequence[str],
    codec: str | None,
    folder: Path,
    journal: Journal,
    done: Done,
    tracks: VideoTracks | None = None,
) -> Counts:
    """Predict images that are not in the journal or whose files have changed; write all formats.

    Args:
        predictor: predicts the images.
        model: description of the model.
        sources: images and videos.
        formats: names of the formats to write.
        codec: codec of annotated videos; None if no videos are annotated.
        folder: output directory.
        journal: journal of the run, in that directory.
        done: function that is called with the counts before the first image, and with the counts
            and the entry after each image.
        tracks: tracks objects in videos; None for no tracking.

    Returns:
        The numbers of images.
    """
    before = ResumedRun.read(journal, sources)
    counts = before.counts
    done(counts, None)
    with ExitStack() as stack:
        annotated = None
        if ANNOTATED in formats:
            annotated = stack.enter_context(Annotated(folder, codec, tracks))
        for some in _shares(before.changed):
            again = stack.enter_context(
                closing(_draw_and_yield(predictor, some, annotated, tracks))
            )
            journal.replace(_count_entries(again, counts, done))
        if before.changed:
            before = ResumedRun.read(journal, sources)
        left = before.left
        # The journal grows during the loop. Only the entries that it has now are results of the
        # earlier run.
        first = (entry for entry in journal.read(sources) if entry.source is left[0])
        found = _draw_and_yield(predictor, left, annotated, tracks, islice(first, before.of_first))
        for answer in stack.enter_context(closing(found)):
            if answer.is_new:
                journal.add(answer.entry)
                counts.add(answer.entry)
                done(counts, answer.entry)
    model = _complete_skeleton(model, journal.read(sources))
    for name in formats:
        if name in WRITERS:
            WRITERS[name](journal.read(sources), sources, model, folder)
    journal.complete()
    return counts


def _shares(changed: Sequence[Source]) -> Iterator[Sequence[Source]]:
    """Divide changed sources into batches.

    The journal is rewritten once for each batch, so an interruption loses the results of at most
    one batch.
    """
    most, share = max(_SHARE, len(changed) // 100), list[Source]()
    for source in changed:
        share.append(source)
        if source.is_video or len(share) == most:
            yield share
            share = []
    if share:
        yield share


def _count_entries(again: Iterable[Outcome], counts: Counts, done: Done) -> Iterator[Entry]:
    for answer in again:
        counts.add(answer.entry)
        done(counts, answer.entry)
        yield answer.entry


def _draw_and_yield(
    predictor: Predictor,
    sources: Sequence[Source],
    annotated: Annotated | None,
    tracks: VideoTracks | None,
    known: Iterable[Entry] = (),
) -> Generator[Outcome]:
    """Yield the outcomes for sources; write annotated images if `annotated` is given."""
    # With tracking, the results are drawn later, after `follow` has added the track ids in the
    # order of frames.
    draw = None if annotated is None or tracks is not None else annotated.draw
    keep = tracks is not None
    with closing(answers(predictor, sources, draw=draw, known=known, keep_images=keep)) as found:
        for answer in found:
            if tracks is not None and answer.image is not None:
                entry = tracks.follow(answer.entry, answer.image, answer.time_s)
                drawn = None if annotated is None else annotated.draw(entry, answer.image)
                answer = replace(answer, entry=entry, drawn=drawn, image=None)
            if annotated is not None:
                annotated.write(answer.entry, answer.drawn)
            yield answer
    if annotated is not None:
        annotated.finish()


def _complete_skeleton(model: ModelInfo, entries: Iterable[Entry]) -> ModelInfo:
    """Take a missing skeleton from the results, because the server's metadata may lack it."""
    if model.task != "pose" or model.vocabulary.skeleton is not None:
        return model
    known = (result.vocabulary.skeleton for each in entries if (result := each.checked) is not None)
    return replace(
        model, vocabulary=replace(model.vocabulary, skeleton=next(filter(None, known), None))
    )
