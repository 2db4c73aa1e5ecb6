"""Requests/s of `simple` over v2, on connections with our bounds, and on stock ones.

    python benchmarks/connection.py [--models DIR] [--rounds 9] [--seconds 2] [--json FILE]

One process serves the same models on two ports: with the bounds of `http/connection.py`, as
`fovea serve` does, and with uvicorn's own protocol. Each round measures both, in turn; the ratio is
taken inside the round, so that a noisy machine cancels out. The CPU that the server spends on a
request is compared in the same way: it is not disturbed by what else runs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import time
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from http_load import http_load
from tables import ratio
from triton import Served, binary_request, measured, stopping

from fovea_engines.device import processor_name
from fovea_server.app import build_app
from fovea_server.http.application import create_application
from fovea_server.logs import set_up_logging
from fovea_server.serve import KEEP_ALIVE_S, make_server
from fovea_server.settings import Settings

KINDS = ("connection", "asgi")


def serve(models: Path, own: int, stock: int) -> None:
    """Serve `simple` at two open sockets until SIGTERM."""
    settings = Settings(
        model_repository=[models],
        model_control_mode="explicit",
        load_model=["simple"],
        allow_grpc=False,
        allow_metrics=False,
    )
    set_up_logging("warning")
    app = build_app(settings)
    app.registry.start()
    config = uvicorn.Config(
        create_application(app),
        http="httptools",
        ws="none",
        access_log=False,
        log_level="error",
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
    )
    server, beside = make_server(app), uvicorn.Server(config)

    async def run() -> None:
        serving = asyncio.create_task(beside.serve([socket.socket(fileno=stock)]))
        await server.serve([socket.socket(fileno=own)])
        beside.should_exit = True
        await serving

    with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
        runner.run(run())
    app.close()


def start(models: Path) -> tuple[subprocess.Popen[bytes], list[int]]:
    """Start the server; it and its ports, in the order of `KINDS`."""
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in KINDS]
    numbers = [listener.fileno() for listener in listeners]
    command = [sys.executable, __file__, "--models", str(models), "--serve", *map(str, numbers)]
    server = subprocess.Popen(command, pass_fds=numbers)
    ports = [listener.getsockname()[1] for listener in listeners]
    for listener in listeners:
        listener.close()
    until = time.monotonic() + 60
    for port in ports:
        while not _ready(port):
            if time.monotonic() > until:
                raise SystemExit("the server was not ready within 60 s")
            time.sleep(0.05)
    return server, ports


def _ready(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/v2/health/ready").status_code == 200
    except httpx.TransportError:
        return False


def measure(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each number of clients."""
    request = binary_request()
    started, ports = start(arguments.models)
    rounds: dict[int, list[dict[str, Served]]] = {n: [] for n in arguments.clients}
    with stopping(started) as server:
        for index in range(arguments.rounds):
            # Who goes first changes with every round.
            order = list(zip(KINDS, ports, strict=True))[:: -1 if index % 2 else 1]
            for clients in arguments.clients:
                bursts = {}
                for kind, port in order:
                    load = partial(http_load, port, [request], clients, arguments.seconds)
                    bursts[kind] = measured(server, load)
                rounds[clients].append(bursts)
    return [row(clients, rounds[clients]) for clients in arguments.clients]


def row(clients: int, rounds: list[dict[str, Served]]) -> dict[str, Any]:
    """Medians over the rounds, and our own connections as ratios to ASGI."""
    found: dict[str, Any] = {"clients": clients}
    for kind in KINDS:
        for name in ("rate", "p50_ms", "p99_ms", "server_us"):
            middle = statistics.median(getattr(bursts[kind], name) for bursts in rounds)
            found[f"{kind}_{name}"] = round(middle, 3)
    pairs = [(bursts["connection"], bursts["asgi"]) for bursts in rounds]
    found["ratios"] = [round(own.rate / stock.rate, 3) for own, stock in pairs]
    found["cpu_ratios"] = [round(stock.server_us / own.server_us, 3) for own, stock in pairs]
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=Path, default=Path("../shared/data/triton/models"))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=2.0, help="length of one burst")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument("--serve", type=int, nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.models, *arguments.serve)
        return
    report = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{processor_name()}, {len(os.sched_getaffinity(0))} cores, {platform.system()}",
        "rows": measure(arguments),
    }
    print(f"{report['machine']}; {report['date']}; requests/s and us of the server's CPU a request")
    print("clients  connection  us    ASGI  us   rate to ASGI          CPU of ASGI to ours")
    for found in report["rows"]:
        print(
            f"{found['clients']:>7}  {found['connection_rate']:10,.0f}"
            f"  {found['connection_server_us']:3.0f}  {found['asgi_rate']:6,.0f}"
            f"  {found['asgi_server_us']:3.0f}  {ratio(found['ratios']):<20}"
            f"  {ratio(found['cpu_ratios'])}"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
