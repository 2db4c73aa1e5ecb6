"""Starts `fovea serve` as a separate process on free ports, and stops it."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import httpx
import psutil

from fovea_engines.session import Closing
from fovea_preprocess.errors import InvalidOption, Unavailable

_PROGRAM = "from fovea_server.cli.main import main_of_child; main_of_child()"
_LINES_SHOWN = 12
# Prefix of the last line that a failed command prints, and exit code for wrong options.
_ERROR, _WRONG = "error: ", 2


class ServerProcess(Closing):
    """A server process with one model of a repository; it is ready after construction.

    Args:
        repository: directory of models.
        model: name of the model to load.
        flags: additional flags of `fovea serve`, which override the flags that this class sets.

    Raises:
        InvalidOption: `fovea serve` rejects the flags.
        Unavailable: the server stopped; the message has the server's error or the end of its log.
    """

    def __init__(self, repository: Path, model: str, flags: Sequence[str] = ()) -> None:
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - `close` closes it
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        command = [
            *(sys.executable, "-c", _PROGRAM, "serve", f"{repository}"),
            *("--model-control-mode=explicit", f"--load-model={model}", "--exit-on-error"),
            *(f"--http-port={port}", "--allow-metrics=false", "--allow-grpc=false"),
            *("--log-access=false", "--exit-timeout-secs=5", *flags),
        ]
        # The server is in a separate process group, because Ctrl-C must not stop it before its
        # statistics are read.
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=self._log, stderr=self._log, process_group=0
        )
        self._used = psutil.Process(self._process.pid)
        try:
            self._wait()
        except BaseException:
            self.close()
            raise

    def _wait(self) -> None:
        with httpx.Client(base_url=self.url) as http:
            while self._process.poll() is None:
                try:
                    if http.get("/v2/health/ready").status_code == httpx.codes.OK:
                        return
                except httpx.TransportError:
                    pass
                time.sleep(0.02)
        self._log.seek(0)
        lines = self._log.readlines()
        errors = [line.removeprefix(_ERROR) for line in lines if line.startswith(_ERROR)]
        error = errors[-1] if errors else "\n" + "".join(lines[-_LINES_SHOWN:])
        kind = InvalidOption if self._process.returncode == _WRONG else Unavailable
        raise kind(f"`fovea serve` stopped before it was ready: {error.rstrip()}")

    @property
    def cpu_s(self) -> float:
        """CPU time that the server has used, in seconds; 0 after the server has ended."""
        try:
            times = self._used.cpu_times()
        except psutil.NoSuchProcess:
            return 0.0
        return float(times.user + times.system)

    def close(self) -> None:
        """Stop the server, and kill it if it does not stop; further calls do nothing."""
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdin is not None, "the child reads it"
        self._process.stdin.close()
        self._log.close()


def free_port() -> int:
    """Return a TCP port of this machine that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    return port
