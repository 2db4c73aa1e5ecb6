"""`fovea bench --mlperf`: a scenario of MLPerf Inference, as LoadGen drives and judges it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import typer

from fovea_bench.commands.bench_tables import uncut_console
from fovea_bench.mlperf.carriers import Carrier, EngineCarrier, GrpcCarrier, HttpCarrier
from fovea_bench.mlperf.grpc_requests import grpc_image_requests
from fovea_bench.mlperf.run import LoadGenRun, loadgen_run
from fovea_bench.mlperf.scenario import SAMPLES, Over, Scenario, Terms
from fovea_bench.payload import MOST_IMAGES, image_payload
from fovea_bench.server_process import ServerProcess, free_port
from fovea_bench.target import Target
from fovea_engines.backends.installing import install
from fovea_engines.evaluate.samples import image_files
from fovea_engines.progress import ConsoleProgress
from fovea_engines.repository.card import CARD_FILE, EngineCard
from fovea_engines.repository.repository import ModelRepository
from fovea_files.predictors import IN_FLIGHT
from fovea_preprocess.errors import InvalidOption
from fovea_preprocess.plural import counted

UNVERIFIED = "unverified by MLCommons"


@dataclass(frozen=True, slots=True)
class LoadGenPlan:
    """A run as it was asked for.

    Attributes:
        version: of the model; None for the one that is served.
        repository: to serve from; of no meaning with `url`.
        url: of a running server.
        logs: folder that LoadGen writes into.
    """

    model: str
    version: int | None
    repository: Path
    url: str | None
    serve_flags: Sequence[str]
    images: Path
    over: Over
    terms: Terms
    logs: Path
    warmup_s: float
    timeout_s: float


@dataclass(frozen=True, slots=True)
class _Reached:
    """A model, and the way to it.

    Attributes:
        images: number of them.
        server: that was started for the run.
    """

    carrier: Callable[[], Carrier]
    version: int
    engine: str | None
    where: str
    images: int
    server: ServerProcess | None = None


def check_loadgen() -> str:
    """Return the version of LoadGen; InvalidOption, with a remedy, where it is not installed."""
    try:
        return version("mlcommons-loadgen")
    except PackageNotFoundError:
        raise InvalidOption(
            f"--mlperf needs MLCommons' LoadGen: {install('mlcommons-loadgen>=6.0,<7')}"
        ) from None


def run_mlperf(plan: LoadGenPlan, *, as_json: bool) -> None:
    """Run it and show the outcome; exit with 1 where it should be a valid run, and is none."""
    loadgen = check_loadgen()
    plan.logs.mkdir(parents=True, exist_ok=True)
    progress = ConsoleProgress()
    with ExitStack() as stack:
        reached = _in_process(plan) if plan.over is Over.PROCESS else _over_network(plan, stack)
        served_s: list[float] = []

        def show(answered: int) -> None:
            if answered:
                progress.now(counted(answered, "image"))
            elif reached.server is not None:
                served_s.append(reached.server.cpu_s)

        with progress.phase(plan.terms.scenario):
            run = loadgen_run(plan.terms, reached.carrier, plan.logs, plan.warmup_s, show)
        if reached.server is not None:
            served_s.append(reached.server.cpu_s)
    faults = _faults(plan, run, reached.images)
    document = {
        "mlperf": UNVERIFIED,
        "loadgen": loadgen,
        "model": plan.model,
        "version": reached.version,
        "engine": reached.engine,
        "where": reached.where,
        "scenario": plan.terms.scenario,
        "over": plan.over,
        "valid": not faults,
        "faults": faults,
        "figure": {"name": plan.terms.scenario.figure, "value": _rounded(run.figure)},
        "latency_ms": {name: _rounded(ms) for name, ms in run.latency_ms.items()},
        "images": run.samples,
        "failures": run.failures,
        "seconds": round(run.seconds, 3),
        "cpu_ms": {
            "server": _rounded(1e3 * (served_s[-1] - served_s[0]) / run.samples)
            if served_s
            else None,
            "load": _rounded(1e3 * run.cpu_s / run.samples),
        },
        "logs": str(plan.logs),
    }
    if as_json:
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
    else:
        _show(document)
    if run.failures or (faults and plan.terms.seconds is None):
        raise typer.Exit(1)


def _in_process(plan: LoadGenPlan) -> _Reached:
    number = plan.version or ModelRepository(plan.repository).served(plan.model)[-1]
    folder = plan.repository / plan.model / str(number)
    card = EngineCard.read(folder / CARD_FILE)
    images = _read(plan.images)
    carrier = partial(EngineCarrier, folder, images, plan.terms.scenario is Scenario.SINGLE_STREAM)
    return _Reached(carrier, number, f"{card.backend} {card.precision}", "in process", len(images))


def _over_network(plan: LoadGenPlan, stack: ExitStack) -> _Reached:
    """Start a server where there is none, and check with an image that it answers."""
    server, url, flags, port = None, plan.url, [*plan.serve_flags], 0
    if plan.over is Over.GRPC:
        port = free_port()
        flags += ["--allow-grpc=true", f"--grpc-port={port}"]
    if url is None:
        server = stack.enter_context(ServerProcess(plan.repository, plan.model, flags))
        url = server.url
    target = stack.enter_context(Target(url, plan.model, plan.version))
    payload = image_payload(target, plan.images)
    kind: type[HttpCarrier | GrpcCarrier] = HttpCarrier
    endpoint, requests = target.address, payload.timed
    if plan.over is Over.GRPC:
        kind, endpoint = GrpcCarrier, replace(endpoint, port=port)
        requests = grpc_image_requests(target, _read(plan.images))
    at_once = IN_FLIGHT if plan.terms.scenario is Scenario.OFFLINE else None
    carrier = partial(kind, endpoint, requests, at_once, plan.timeout_s)
    return _Reached(carrier, payload.version, target.engine(), url, len(requests), server)


def _read(images: Path) -> list[bytes]:
    return [file.read_bytes() for file in image_files(images, MOST_IMAGES)]


def _faults(plan: LoadGenPlan, run: LoadGenRun, images: int) -> list[str]:
    """List the reasons for which this is no valid run."""
    faults = []
    if plan.terms.seconds is not None:
        faults.append(f"--quick: {plan.terms.seconds:g} s, and a valid run takes 10 minutes")
    if images < SAMPLES:
        faults.append(f"{counted(images, 'image')}: a valid run draws from {SAMPLES} (--images)")
    faults += [f"{n} not answered: {reason}" for reason, n in run.failures.items()]
    if run.invalid:
        faults.append(f"LoadGen: {run.invalid}")
    return faults


def _show(document: dict[str, Any]) -> None:
    from rich.table import Table
    from rich.text import Text

    console = uncut_console()
    parts = (f"{document['model']} version {document['version']}", document["engine"])
    console.print(Text(", ".join(filter(None, (*parts, document["where"]))), style="bold"))
    figure, cpu_ms = document["figure"], document["cpu_ms"]
    latencies = (f"{name} {_cell(ms, 1)}" for name, ms in document["latency_ms"].items())
    cpu = {"the server": cpu_ms["server"], "LoadGen's process": cpu_ms["load"]}
    table = Table.grid(padding=(0, 2, 0, 0))
    for name, told in (
        (str(document["scenario"]), f"{figure['name']}: {_cell(figure['value'], 2)}"),
        ("all queries, ms", ", ".join(latencies)),
        ("images", f"{document['images']} in {_cell(document['seconds'], 1)} s"),
        (
            "CPU of an image, ms",
            ", ".join(f"{ms:.2f} in {where}" for where, ms in cpu.items() if ms is not None),
        ),
    ):
        table.add_row(Text(name), Text(told))
    console.print(table)
    verdict = "LoadGen finds the run valid" if document["valid"] else "This is not a valid run"
    console.print(Text(f"{verdict}. MLPerf's terms, {UNVERIFIED}.", style="bold"))
    for fault in document["faults"]:
        console.print(Text(fault), soft_wrap=True)
    console.print(Text(f"Logs: {document['logs']}"), soft_wrap=True)


def _cell(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
