"""Servers and commands that are forked, so that the interpreter and all modules are not loaded for
each. That is two thirds of what it takes to start and stop a server, and most of a short command.
"""

import atexit
import json
import os
import select
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from tests import slimmed

PROGRAM = ("-m", "fovea_server.cli.main")
"""Arguments of Python that run `fovea`."""
CAN_FORK = sys.platform == "linux"


def forked_fovea() -> tuple[str, ...]:
    """What `subprocess` starts as `fovea`: a small process that has it forked, and is like it.

    It is for tests of what a command does: not of how it starts, and not of its process, which
    SIGKILL, limits and groups do not reach.
    """
    if not CAN_FORK:
        return (sys.executable, *PROGRAM)
    program = Path(__file__).with_name("fork_command.py")
    return (sys.executable, "-IS", str(program), _host(), _run())


def on_path(folder: Path) -> str:
    """The search path, with `fovea` as `forked_fovea` has it and the Python of the tests first."""
    places = [str(Path(sys.executable).parent), os.environ["PATH"]]
    if CAN_FORK:
        program = folder / "fovea"
        program.write_text(f'#!/bin/sh\nexec {shlex.join(forked_fovea())} "$@"\n')
        program.chmod(0o755)
        places.insert(0, str(folder))
    return os.pathsep.join(places)


def _run() -> str:
    """The folder that all processes of a run share, if there is one."""
    return str(slimmed.shared_folder or "")


class Forked:
    """`fovea` with arguments, in a process of its own, with the members of `subprocess.Popen`."""

    def __init__(self, arguments: Sequence[str], stderr: int) -> None:
        self.args = arguments
        self.returncode: int | None = None
        given = {
            "run": _run(),
            "arguments": arguments,
            "cores": [*os.sched_getaffinity(0)],
            "folder": str(Path.cwd()),
            "variables": dict(os.environ),
        }
        reader, writer = os.pipe()
        message = json.dumps(given).encode()
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as channel:
                channel.connect(_host())
                socket.send_fds(channel, [message], [0, 1, stderr, writer])
        finally:
            os.close(writer)
        self._report = os.fdopen(reader)
        self.pid = int(self._report.readline())

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end, and return the exit code."""
        if self.returncode is None:
            if not select.select([self._report], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(list(self.args), timeout or 0)
            self.returncode = int(self._report.readline())
            self._report.close()
        return self.returncode

    def poll(self) -> int | None:
        """Return the exit code, or None while it runs."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def send_signal(self, sent: int) -> None:
        """Send a signal, if it runs."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it ended just now
                os.kill(self.pid, sent)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


@cache
def _host() -> str:
    """Start the process that is forked, which ends with this one; return where it listens."""
    folder = tempfile.TemporaryDirectory(prefix="fovea-tests-")
    address = f"{folder.name}/host"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(address)
        listener.listen()
        host = subprocess.Popen(
            [sys.executable, "-m", "tests.fork_host", str(listener.fileno())],
            stdin=subprocess.PIPE,
            pass_fds=[listener.fileno()],
            cwd=Path(__file__).parents[1],
        )

    def end() -> None:
        host.communicate()
        folder.cleanup()

    atexit.register(end)
    return address
