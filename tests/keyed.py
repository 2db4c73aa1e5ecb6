"""Keys as an operator makes them, and what the tests of keys ask."""

import time
from collections.abc import Callable

import numpy as np
from tritonclient import grpc
from typer.testing import CliRunner

from fovea_server.cli.main import app


def key(*arguments: object) -> str:
    """Run `fovea key`; returns the key that it prints."""
    run = CliRunner().invoke(app, ["key", *map(str, arguments)])
    assert run.exit_code == 0, run.output
    return run.stdout.strip()


def tensor() -> grpc.InferInput:
    """An image for the demo model."""
    given = grpc.InferInput("images", [1, 3, 320, 320], "FP32")
    given.set_data_from_numpy(np.zeros((1, 3, 320, 320), np.float32))
    return given


def until(condition: Callable[[], object], seconds: float = 250) -> None:
    """Wait until a condition is met."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)
