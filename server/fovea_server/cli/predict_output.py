"""Prints the results of `fovea predict` as tables or JSON, or writes them into files."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.text import Text

from fovea_client import Timing
from fovea_preprocess.text import counted
from fovea_server.cli.predict_progress import PredictProgress
from fovea_server.offline.answers import answers, count_images
from fovea_server.offline.entry import Entry
from fovea_server.offline.formats.registry import FILES, check_formats
from fovea_server.offline.journal import Journal, RunSettings
from fovea_server.offline.predictors import Predictor
from fovea_server.offline.result_output import result_line, result_table
from fovea_server.offline.save import Counts, save
from fovea_server.offline.sources import Sources
from fovea_server.offline.tracked import Tracking, VideoTracks


def show(predictor: Predictor, sources: Sources) -> Counts:
    """Print a table for each image.

    For directories, globs and videos, print a line for each image.
    """
    console, counts = Console(), Counts()
    lines = sources.listed or any(source.is_video for source in sources.files)
    with closing(answers(predictor, sources.files)) as found:
        for answer in found:
            counts.add(answer.entry)
            if (result := answer.entry.checked) is None:
                complain(answer.entry.problem or "")
                continue
            width, height = result.size
            title = Text(f"{answer.entry.place}  {width} x {height}", style="bold")
            if lines:
                title.append(f"  {result_line(result)}", style="not bold")
            console.print(title, soft_wrap=True)
            if not lines:
                console.print(result_table(result))
    return counts


def print_json(predictor: Predictor, model: str, sources: Sources) -> Counts:
    """Print one JSON document, with the form of a response to one request with all images."""
    counts, images, timings = Counts(), list[dict[str, Any]](), list[Timing]()
    document: dict[str, Any] = {"model": model, "version": None, "task": None}
    with (
        PredictProgress(count_images(sources.files)) as progress,
        closing(answers(predictor, sources.files)) as found,
    ):
        for answer in found:
            images.append(answer.entry.as_json())
            if (prediction := answer.prediction) is not None:
                document = {name: getattr(prediction, name) for name in document}
                timings.append(prediction.timing_ms)
            counts.add(answer.entry)
            progress.add(counts, answer.entry)
    document |= {"images": images, "timing_ms": _join_timings(timings)}
    sys.stdout.write(json.dumps(document, indent=2) + "\n")
    return counts


def write_files(
    predictor: Predictor,
    sources: Sources,
    formats: Sequence[str],
    codec: str | None,
    folder: Path,
    options: dict[str, Any],
    *,
    resume: bool,
    tracking: Tracking | None = None,
) -> Counts:
    """Write the results in all formats into a directory, and print the names of the files.

    Args:
        predictor: predicts the images.
        sources: images and videos.
        formats: names of the formats.
        codec: codec of annotated videos; None if no videos are annotated.
        folder: output directory.
        options: options of the requests; a resumed run must have the same options.
        resume: True to continue an interrupted run.
        tracking: settings of the tracker; None for no tracking.

    Returns:
        The numbers of images.
    """
    model = replace(predictor.describe(), mask=options.get("mask", "rle"))
    check_formats(formats, model)
    every = sources.files[0].every
    settings = RunSettings(
        model.name, model.version, model.task, options, every, tuple(formats), codec
    )
    if (texts := options.get("labels")) is not None:
        model = model.with_texts(texts)
    so_far = None
    tracks = None if tracking is None else VideoTracks(tracking, model.vocabulary)
    with Journal(folder, settings, model.vocabulary, resume=resume) as journal:
        try:
            with PredictProgress(count_images(sources.files)) as progress:

                def done(counts: Counts, entry: Entry | None) -> None:
                    nonlocal so_far
                    so_far = counts
                    if entry is None:
                        progress.show(counts)
                    else:
                        progress.add(counts, entry)

                files = sources.files
                counts = save(
                    predictor, model, files, formats, codec, folder, journal, done, tracks
                )
        except BaseException:
            if so_far is not None and so_far.images:
                complain(
                    f"stopped after {counted(so_far.images, 'image')}; their results are in "
                    f"{folder}. To continue, run the same command with --resume"
                )
            raise
    typer.echo(f"processed {counted(counts.images, 'image')}; the results are in {folder}:")
    for name in dict.fromkeys(["jsonl", *formats]):
        typer.echo(f"  {name:<10} {FILES[name]}")
    for video, shapes in (tracks.counts if tracks else {}).items():
        for name, of_shape in shapes.items():
            typer.echo(f"{video}: {name}: {', '.join(f'{k} {n}' for k, n in of_shape.items())}")
    return counts


def complain(text: str) -> None:
    """Print an error on stderr."""
    typer.secho(text, fg="red", err=True)


def _join_timings(timings: Sequence[Timing]) -> dict[str, Any]:
    """Return the longest duration of each stage, and the sum of the total durations."""
    rows = [asdict(each) for each in timings]
    of_pipeline = [row.pop("stages") or {} for row in rows]
    joined: dict[str, Any] = _longest(rows)
    joined["total"] = round(sum(each.total for each in timings), 3)
    return joined | ({"stages": _longest(of_pipeline)} if any(of_pipeline) else {})


def _longest(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    stages = dict.fromkeys(stage for row in rows for stage in row)
    return {stage: max(row[stage] for row in rows if stage in row) for stage in stages}
