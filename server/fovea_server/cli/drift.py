"""`fovea drift`: compares live images with the images of a model's build."""

from __future__ import annotations

from math import log
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from fovea_engines.repository.card import MIN_LIVE
from fovea_preprocess.text import counted
from fovea_server.cli.options import AsJson, PlotOption, check_plot
from fovea_server.cli.server_client import SERVER, NameArgument, ServedModelClient, ServerOption
from fovea_server.monitoring.drift import DriftBin, DriftQuantity, DriftReport
from fovea_server.monitoring.drift_chart import draw

# Thresholds of the population stability index that are commonly used: from the first on, the change
# is moderate; from the second on, it is significant.
_CHANGED, _DRIFTED = 0.1, 0.25
_FAR = 1


def drift(
    model: NameArgument,
    url: ServerOption = SERVER,
    plot: PlotOption = None,
    max_distance: Annotated[
        float | None,
        typer.Option(
            metavar="NUMBER",
            min=0.0,
            help=(
                "Largest accepted drift distance, e.g. 0.25. If a distance is larger, the exit "
                "status is 1. Without this option, distances do not change the exit status."
            ),
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare live images with the images of the build.

    The command compares the last 500 images of a running server with the images of the build
    (--images, --calibration or --data): scores, classes, sizes, number of objects and brightness.
    For each of them it shows a distance: the population stability index, minus the part that chance
    explains. A distance of 0.1 or more is a change, and 0.25 or more a large change.
    docs/how-to/drift.md explains what to do then. --plot draws both distributions.

    Example: fovea drift yolov8n --url http://127.0.0.1:8000 --plot drift.svg
    """
    check_plot(plot)
    with ServedModelClient(url, model) as server:
        report = server.ask(DriftReport, "drift")
    if plot is not None:
        plot.write_text(draw(report), "utf-8")
    if as_json:
        typer.echo(report.model_dump_json(indent=2))
    else:
        _show(report)
    if max_distance is not None and max_distance < max(
        (each.distance for each in report.quantities if each.distance is not None), default=0.0
    ):
        raise typer.Exit(_FAR)


def _show(report: DriftReport) -> None:
    table = Table("quantity", "distance", "verdict", "images", "changed most")
    for each in report.quantities:
        distance = "-" if each.distance is None else f"{each.distance:.2f}"
        most = "" if each.distance is None else _describe_largest_change(each)
        table.add_row(each.quantity, distance, _verdict(each), str(each.images), most)
    Console().print(table)
    typer.echo(
        f"{report.model}, version {report.version}, compared with "
        f"{counted(report.images, 'image')} of {report.images_from}; live images excluded because "
        f"of request options: {report.left_out}"
    )


def _verdict(of: DriftQuantity) -> str:
    if of.distance is None:
        return f"under {MIN_LIVE} images"
    if of.distance < _CHANGED:
        return "as built"
    return "changed" if of.distance < _DRIFTED else "drifted"


def _describe_largest_change(of: DriftQuantity) -> str:
    def part(one: DriftBin) -> float:
        """Return the approximate contribution of a bin to the population stability index."""
        least = 0.5 / max(1, of.images)
        return (one.live - one.expected) * log((one.live + least) / (one.expected + least))

    most = max(of.bins, key=part)
    return f"{most.bin}: {most.expected:.0%} -> {most.live:.0%}"
