"""`fovea doctor`: what this machine has, what will not work, how to mend it."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Annotated

import typer

from fovea_server.commands.diagnosis import Finding, diagnose
from fovea_server.commands.machine import Machine, look


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> None:
    """Tell what will not work here, and the cure.

    Exits with 1 when no model can be served on the CPU.
    """
    machine = look()
    findings = diagnose(machine)
    if as_json:
        document = asdict(machine) | {"findings": [asdict(finding) for finding in findings]}
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
    else:
        _show(machine, findings)
    if any(finding.fatal for finding in findings):
        raise typer.Exit(1)


def _show(machine: Machine, findings: tuple[Finding, ...]) -> None:
    # Imported late: the commands share one program, and `fovea serve` need not wait for it.
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    table = Table(show_header=False, box=None)
    for name, value in _rows(machine):
        table.add_row(f"[bold]{name}[/bold]", escape(value))
    console.print(table)
    console.print()
    for finding in findings:
        mark = "[red]✗[/red]" if finding.fatal else "[yellow]![/yellow]"
        console.print(f"{mark} {escape(finding.text)}", soft_wrap=True, highlight=False)
    if not findings:
        console.print("[green]✓[/green] Nothing to mend.")


def _rows(machine: Machine) -> list[tuple[str, str]]:
    cpu, memory = machine.cpu, machine.memory
    features = "unknown" if cpu.features is None else ", ".join(cpu.features) or "none that help"
    backends = [f"{b.name} {b.version or 'not installed'}" for b in machine.backends]
    gpus = [f"{gpu.name}, {gpu.memory_mib} MiB" for gpu in machine.gpus]
    packages = [f"{name} {version}" for name, version in machine.gpu_packages.items()]
    return [
        ("processor", cpu.name),
        ("cores", f"{cpu.usable} usable of {cpu.cores}"),
        ("instructions", features),
        ("memory", f"{memory.available / 2**30:.1f} GiB free of {memory.total / 2**30:.1f}"),
        ("/dev/shm", f"{memory.shared / 2**30:.1f} GiB"),
        ("backends", "\n".join(backends)),
        ("GPU", "\n".join(gpus) or "none"),
        ("NVIDIA driver", machine.driver or "none"),
        ("GPU packages", "\n".join(packages) or "none"),
    ]
