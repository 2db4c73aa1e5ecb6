"""Shows what was read of a repository of Triton: a table for people, a document for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from fovea_start.triton.migrate import MigratedNetwork


def document(networks: Sequence[MigratedNetwork], problems: Sequence[str]) -> dict[str, Any]:
    """Convert to plain JSON types; files are named, without their content."""
    plain = [
        asdict(one)
        | {"files": list(one.files)}
        | {"steps": [asdict(step) | {"does": step.does} for step in one.steps]}
        for one in networks
    ]
    return {"networks": plain, "problems": list(problems)}


def report_table(
    networks: Sequence[MigratedNetwork], problems: Sequence[str]
) -> Iterator[Table | str]:
    """Yield a table of the steps of each network, and what is left to the user."""
    for one in networks:
        where = f" of the ensemble {one.ensemble}" if one.ensemble else ""
        family = f", of the family {one.family}" if one.family else ""
        yield f"{one.name}{where}: {one.takes or one.file}{family}"
        table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        for title in ("step", "reads as", "code", "where"):
            table.add_column(title, overflow="fold")
        for step in one.steps:
            found = [each for each in (*step.findings, *step.constants) if each.kind != "layout"]
            for row, each in enumerate(found):
                table.add_row(
                    *map(Text, ("" if row else step.name, each.kind, each.code, each.where))
                )
            if not found:
                table.add_row(*map(Text, (step.name, "unknown", step.problem, "")))
        if one.steps:
            yield table
        if one.options:
            sent = "&".join(f"{k}={str(v).lower()}" for k, v in one.options.items())
            yield f"  requests then have ?{sent}"
        yield from (f"  contradiction: {text}" for text in one.contradictions)
        yield from (f"  left to you: {text}" for text in one.left)
    yield from (f"not read: {text}" for text in problems)
