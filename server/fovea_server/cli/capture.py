"""`fovea capture`: the images that `fovea serve --capture DIR` has stored."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from fovea_preprocess.errors import InvalidOption, NotFound
from fovea_preprocess.text import counted
from fovea_server.cli.command import Command, Group
from fovea_server.cli.options import AsJson, check_options
from fovea_server.monitoring.captures import DAMAGED, StoredCapture, captures

FORMATS = ("coco", "yolo", "label-studio", "cvat")

program = typer.Typer(
    name="capture",
    cls=Group,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

_Folder = Annotated[
    Path,
    typer.Argument(
        metavar="DIR",
        exists=True,
        file_okay=False,
        help="Folder of the captured images: the same folder as for `fovea serve --capture`.",
    ),
]
_Model = Annotated[
    str | None, typer.Option(metavar="NAME", help="Select only images of this model.")
]
_Rule = Annotated[
    str | None,
    typer.Option(
        metavar="WORD",
        help=(
            "Select only images that were captured by a rule that begins with this word, e.g. "
            "score or empty."
        ),
    ),
]
_DATES = ["%Y-%m-%d", "%Y-%m-%dT%H:%M"]
_Since = Annotated[
    datetime | None,
    typer.Option(
        metavar="DATE",
        formats=_DATES,
        help=(
            "Select only images captured on or after this date (UTC), e.g. 2026-11-27 or "
            "2026-11-27T18:30."
        ),
    ),
]


@program.callback()
def capture() -> None:
    """List, export and delete captured images.

    `fovea serve --capture DIR` stores images whose results match a rule, so that you can label them
    and train with them: see docs/how-to/capture.md.
    """


@program.command("ls", cls=Command)
def ls(
    folder: _Folder,
    model: _Model = None,
    rule: _Rule = None,
    since: _Since = None,
    as_json: AsJson = False,
) -> None:
    """Count the captured images by model, version and rule.

    With --json, list each image with the id of its request.

    Example: fovea capture ls captures --since 2026-11-20
    """
    found = list(_choose(folder, model, rule, since))
    if as_json:
        rows = [_row(one, about) for one, about in found]
        typer.echo(json.dumps({"captures": rows}, indent=2))
        return
    groups: dict[tuple[str, str, str], list[StoredCapture]] = {}
    for one, about in found:
        groups.setdefault((one.model, about["version"], about["rule"]), []).append(one)
    table = Table("model", "version", "rule", "images", "MB", "first", "last")
    for (name, version, text), of_group in sorted(groups.items()):
        size = sum(each.size for each in of_group) / 1e6
        first, last = (
            f(each.taken for each in of_group).strftime("%Y-%m-%d %H:%M") for f in (min, max)
        )
        table.add_row(name, version, text, f"{len(of_group):,}", f"{size:.1f}", first, last)
    Console().print(table)
    typer.echo(f"{counted(len(found), 'image')} in {folder}; times are in UTC")


@program.command("export", cls=Command)
def export_(
    context: typer.Context,
    folder: _Folder,
    out: Annotated[
        Path,
        typer.Option(
            metavar="DIR",
            file_okay=False,
            help="Folder into which the command writes the export.",
        ),
    ],
    form: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="|".join(FORMATS),
            help="Format of the export: the tool that will read it.",
        ),
    ] = "coco",
    model: _Model = None,
    rule: _Rule = None,
    since: _Since = None,
    images_at: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="With --format label-studio: URL of the image folder on the Label Studio server.",
        ),
    ] = "/data/local-files/?d=images",
    as_json: AsJson = False,
) -> None:
    """Export images and results to a labelling tool or a trainer.

    coco: images/, predictions.json. yolo: images/, labels/, data.yaml. label-studio: images/,
    tasks.json with predictions, config.xml. cvat: images/, and annotations.zip to upload as "COCO
    1.0".

    Example: fovea capture export captures --model yolov8n --format yolo --out to-label
    """
    if form not in FORMATS:
        raise InvalidOption(f"--format {form!r} is unknown; use one of {', '.join(FORMATS)}")
    check_options(context, {"images_at": {"form": ("label-studio",)}})
    chosen = list(_choose(folder, model, rule, since))
    found = [one for one, about in chosen if about["task"] != DAMAGED]
    if damaged := len(chosen) - len(found):
        typer.echo(f"skipped {counted(damaged, 'image')} with damaged files", err=True)
    if not found:
        raise NotFound(f"no capture in {folder} matches, so there is nothing to export")
    # Imported here, because the import takes seconds, and other commands such as `ls` do not need
    # it.
    from fovea_server.offline.capture_export import export

    export(found, form, out, images_at)
    if as_json:
        typer.echo(json.dumps({"images": len(found), "format": form, "out": str(out)}))
    else:
        typer.echo(f"exported {counted(len(found), 'image')} to {out}")


@program.command("purge", cls=Command)
def purge(
    folder: _Folder,
    model: _Model = None,
    rule: _Rule = None,
    request_id: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help=(
                "Select only images of the request with this id. The id is in the response header "
                "x-request-id and in the server's log."
            ),
        ),
    ] = None,
    before: Annotated[
        datetime | None,
        typer.Option(
            metavar="DATE",
            formats=_DATES,
            help=(
                "Select only images captured before this date (UTC), e.g. 2026-11-27 or "
                "2026-11-27T18:30."
            ),
        ),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Delete without a confirmation.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Delete captured images: all, or the selected images.

    A server may store new images at the same time.

    Example: fovea capture purge captures --request-id 7c1e0a9b5d3f2e41000003f2 --yes
    """
    if not yes and (as_json or not sys.stdin.isatty()):
        raise InvalidOption(
            "purge can be confirmed only at a terminal and without --json: add --yes"
        )
    leaving = [
        one
        for one, about in _choose(folder, model, rule, None)
        if (request_id is None or about["request_id"] == request_id)
        and (before is None or one.taken < before.replace(tzinfo=UTC))
    ]
    if request_id is not None and not leaving:
        raise NotFound(
            f"no capture in {folder} has the request id {request_id!r}: `fovea capture ls --json` "
            "lists the ids"
        )
    size = sum(each.size for each in leaving)
    if leaving and not yes:
        text = f"Delete {counted(len(leaving), 'image')} ({size / 1e6:.1f} MB)?"
        leaving = leaving if typer.confirm(text) else []
    for one in leaving:
        one.remove()
    if as_json:
        typer.echo(json.dumps({"deleted": len(leaving), "bytes": size}))
    else:
        typer.echo(f"deleted {counted(len(leaving), 'image')}")


def _choose(
    folder: Path, model: str | None, rule: str | None, since: datetime | None
) -> Iterator[tuple[StoredCapture, dict[str, Any]]]:
    """Yield the selected captures with their metadata, the oldest capture first."""
    found, rules = False, set()
    for one in sorted(captures(folder, model), key=lambda each: each.folder.name):
        if since is not None and one.taken < since.replace(tzinfo=UTC):
            continue
        try:
            about = one.about()
        except FileNotFoundError:  # a server has deleted the capture meanwhile
            continue
        rules.add(about["rule"])
        if rule is None or about["rule"].startswith(rule):
            found = True
            yield one, about
    if rule is not None and not found:
        there = ", ".join(sorted(rules)) or "none"
        raise NotFound(f"no capture has a rule that starts with {rule!r}: the rules are {there}")


def _row(one: StoredCapture, about: dict[str, Any]) -> dict[str, Any]:
    keys = ("version", "task", "rule", "request_id")
    return {
        "model": one.model,
        **{key: about[key] for key in keys},
        "taken": one.taken.isoformat(),
        "bytes": one.size,
        "image": str(next(one.folder.glob("image.*"), "")),
    }
