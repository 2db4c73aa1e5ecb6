"""`fovea shadow`: runs a candidate version beside the current version, on live images."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live
from rich.markdown import Markdown

from fovea_preprocess.errors import InvalidOption, Unavailable
from fovea_server.cli.options import AsJson, check_options
from fovea_server.cli.server_client import (
    SERVER,
    NameArgument,
    ServedModelClient,
    ServerOption,
    parse_share,
)
from fovea_server.rollout.shadow_report import (
    OVER,
    ShadowDocument,
    explain_stall,
    headline,
    markdown,
)

_EVERY_S, _PRINT_EVERY_S, _PATIENCE_S = 1.0, 15.0, 30.0
_NOT_BELOW = 1


def shadow(
    context: typer.Context,
    model: NameArgument,
    version: Annotated[
        int | None,
        typer.Argument(
            metavar="VERSION",
            min=1,
            help=(
                "Number of the candidate version to test. Without it, the command shows the "
                "running shadow test."
            ),
        ),
    ] = None,
    url: ServerOption = SERVER,
    share: Annotated[
        str,
        typer.Option(
            metavar="SHARE",
            help="Share of the live images that the candidate also processes, e.g. 10%.",
        ),
    ] = "10%",
    images: Annotated[
        int,
        typer.Option(metavar="N", help="Number of compared images after which the test ends."),
    ] = 1000,
    max_disagreement: Annotated[
        str | None,
        typer.Option(
            metavar="PERCENT",
            help=(
                "Limit of the share of objects (for a classifier: images) on which the versions "
                "differ, e.g. 2%. The test ends early when the share is clearly below or above "
                "the limit. If it is not clearly below, the exit status is 1."
            ),
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            file_okay=False,
            help=(
                "Folder into which the command writes the report (shadow.json, shadow.md) and the "
                "images with the largest differences, at the end of the test."
            ),
        ),
    ] = None,
    stop: Annotated[
        bool, typer.Option("--stop", help="Stop the running shadow test, and show its report.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Test a candidate version on live images.

    The server also runs the candidate on a part of the live images, and compares the results with
    the responses. The test uses idle CPU time, and slows responses a little
    (docs/how-to/shadow.md has figures). After Ctrl-C the test continues on the server, and `fovea
    shadow MODEL` shows it again.

    Example: fovea shadow yolov8n 7 --share 0.1 --out shadow
    """
    if stop and version is not None:
        raise InvalidOption("--stop ends the only shadow test of the model: leave the version out")
    of_new = ("share", "images", "max_disagreement")
    check_options(context, {name: {"version": ()} for name in of_new})
    limit = parse_share("--max-disagreement", max_disagreement)
    request = None
    if version is not None:
        request = {"version": version, "share": parse_share("--share", share), "images": images}
        request["max_disagreement"] = limit
    method = "DELETE" if stop else "GET" if request is None else "PUT"
    with ServedModelClient(url, model) as server:
        document = server.ask(ShadowDocument, "shadow", method, request)
        document = _follow(server, document, quiet=as_json)
        if out is not None:
            _write(server, document, out)
    if as_json:
        typer.echo(document.model_dump_json(indent=2))
    else:
        Console().print(Markdown(markdown(document)))
    if document.state == "failed":
        raise Unavailable(document.reason)
    if document.verdict in ("above", "undecided"):
        raise typer.Exit(_NOT_BELOW)


def _write(server: ServedModelClient, document: ShadowDocument, folder: Path) -> None:
    (folder / "worst").mkdir(parents=True, exist_ok=True)
    for one in document.report.worst if document.report else ():
        picture = server.fetch(f"shadow/worst/{one.picture}")
        (folder / "worst" / one.picture).write_bytes(picture)
    (folder / "shadow.json").write_text(document.model_dump_json(indent=2) + "\n", "utf-8")
    (folder / "shadow.md").write_text(markdown(document), "utf-8")


def _follow(server: ServedModelClient, document: ShadowDocument, *, quiet: bool) -> ShadowDocument:
    """Wait until the shadow is over, and show its progress.

    If the shadow makes no progress, show the reason.
    """
    show, printed_at = not quiet and sys.stderr.isatty(), -_PRINT_EVERY_S
    before, moved_at = document, time.monotonic()
    with Live(console=Console(stderr=True), transient=True, auto_refresh=False) as live:
        while document.state not in OVER:
            if document.state != before.state or document.report != before.report:
                before, moved_at = document, time.monotonic()
            elif time.monotonic() - moved_at >= _PATIENCE_S:
                live.console.print(explain_stall(before, document))
                before, moved_at = document, time.monotonic()
            if show:
                live.update(headline(document), refresh=True)
            elif not quiet and time.monotonic() - printed_at >= _PRINT_EVERY_S:
                printed_at = time.monotonic()
                typer.echo(headline(document), err=True)
            time.sleep(_EVERY_S)
            document = server.ask(ShadowDocument, "shadow")
    return document
