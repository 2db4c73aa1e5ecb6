"""Shows what `fovea predict` finds, prints it as JSON, or writes it into files."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.text import Text

from fovea_client import ImageError
from fovea_files.answers import Outcome, answers, count_images
from fovea_files.commands.predict_progress import PredictProgress
from fovea_files.entry import Entry
from fovea_files.formats.registry import FILES, check_formats
from fovea_files.journal import Journal, RunSettings
from fovea_files.predictors import Predictor
from fovea_files.result_json import entry_json
from fovea_files.save import Tally, save
from fovea_files.sources import Sources
from fovea_preprocess.plural import counted
from fovea_server.commands.result_output import result_line, result_table


def show(predictor: Predictor, sources: Sources) -> Tally:
    """Print a table for each image, or a line where there may be many."""
    console, tally = Console(), Tally()
    lines = sources.listed or any(source.is_video for source in sources.files)
    with closing(answers(predictor, sources.files)) as found:
        for answer in found:
            tally.add(answer.entry)
            if isinstance(image := answer.entry.found, ImageError):
                complain(answer.entry.problem or "")
                continue
            title = Text(f"{answer.entry.place}  {image.width} x {image.height}", style="bold")
            if lines:
                title.append(f"  {result_line(image)}", style="not bold")
            console.print(title, soft_wrap=True)
            if not lines:
                console.print(result_table(image))
    return tally


def print_json(predictor: Predictor, model: str, sources: Sources) -> Tally:
    """Print all answers, joined as if one request had carried all images."""
    tally, kept = Tally(), list[Outcome]()
    with (
        PredictProgress(count_images(sources.files)) as progress,
        closing(answers(predictor, sources.files)) as found,
    ):
        for answer in found:
            kept.append(answer)
            tally.add(answer.entry)
            progress.add(tally, answer.entry)
    sys.stdout.write(json.dumps(_document(model, kept), indent=2) + "\n")
    return tally


def write_files(
    predictor: Predictor,
    sources: Sources,
    formats: Sequence[str],
    codec: str | None,
    folder: Path,
    options: dict[str, Any],
    *,
    resume: bool,
) -> Tally:
    """Write all formats into a folder, and say what was written.

    `options` are those of the request, and those of a run that this one resumes.
    """
    model = predictor.describe()
    check_formats(formats, model, options.get("mask"))
    every = sources.files[0].every
    settings = RunSettings(
        model.name, model.version, model.task, options, every, tuple(formats), codec
    )
    so_far = None
    with Journal(folder, settings, resume=resume) as journal:
        try:
            with PredictProgress(count_images(sources.files)) as progress:

                def done(tally: Tally, entry: Entry | None) -> None:
                    nonlocal so_far
                    so_far = tally
                    if entry is None:
                        progress.show(tally)
                    else:
                        progress.add(tally, entry)

                tally = save(predictor, model, sources.files, formats, codec, folder, journal, done)
        except BaseException:
            if so_far is not None and so_far.images:
                complain(
                    f"stopped after {counted(so_far.images, 'image')}, which are kept in {folder}: "
                    "the same command with --resume goes on"
                )
            raise
    typer.echo(f"{counted(tally.images, 'image')} done, with the results in {folder}:")
    for name in dict.fromkeys(["jsonl", *formats]):
        typer.echo(f"  {name:<10} {FILES[name]}")
    return tally


def complain(text: str) -> None:
    """Print what is wrong on stderr."""
    typer.secho(text, fg="red", err=True)


def _document(model: str, found: Sequence[Outcome]) -> dict[str, Any]:
    predictions = [each.prediction for each in found if each.prediction is not None]
    timings = [asdict(answer.timing_ms) for answer in predictions]
    slowest = {stage: max(t[stage] for t in timings) for stage in (timings[0] if timings else ())}
    total = {"total": round(sum(t["total"] for t in timings), 3)}
    return {
        "model": predictions[0].model if predictions else model,
        "version": predictions[0].version if predictions else None,
        "task": predictions[0].task if predictions else None,
        "images": [entry_json(each.entry) for each in found],
        "timing_ms": slowest | total,
    }
