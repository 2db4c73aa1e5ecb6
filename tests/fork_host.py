"""The process that `tests/forked.py` has others forked from: it has imported what they import."""

import ctypes
import gc
import json
import os
import runpy
import select
import signal
import socket
import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from fovea_preprocess.entry_points import extending_packages
from fovea_server.cli.main import main
from fovea_server.settings import silence_grpc

# Without ONNX Runtime and OpenVINO, which start threads as they are imported: no fork has those.
_OF_SERVERS = ("cli.serve", "serve", "grpc.server", "metrics.listener", "http.application")
_OF_OTHERS = (
    *("onnxslim.cli._main", "rich.progress", "rich.table"),
    *("fovea_server.cli.build", "fovea_engines.build.build", "fovea_engines.engine"),
    *("fovea_server.cli.eval", "fovea_server.cli.predict", "fovea_server.cli.bench"),
)
_PR_SET_PDEATHSIG = 1
# Python has read these as it started: where others are given, it has to start.
_READ_AT_START = ("PYTHON", "LANG", "LC_", "OPENBLAS_")


def import_of_servers() -> None:
    """Import what a server does, in the same order."""
    silence_grpc()
    for name in _OF_SERVERS:
        import_module(f"fovea_server.{name}")
    extending_packages()
    _keep()


@cache
def import_of_others(folder: str) -> None:
    """Import what most other commands do; share simplified graphs by the folder of a run."""
    for name in _OF_OTHERS:
        import_module(name)
    if folder:
        from tests.slimmed import share_slimmed
        from tests.timed_briefly import search_coarsely, time_briefly

        share_slimmed(Path(folder))
        time_briefly()
        search_coarsely()
    _keep()


def _keep() -> None:
    """Leave all objects as they are, in memory that forks share."""
    gc.collect()
    gc.freeze()


def read_at_start(variables: dict[str, str]) -> dict[str, str]:
    """The variables that Python, or what it imports, reads once."""
    return {name: value for name, value in variables.items() if name.startswith(_READ_AT_START)}


def asked_for(listener: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Return in a new process what it is asked for, and in this one None at the end of all.

    Between them is a process that tells the id of the new one, and how it ended: the tests are no
    parents of it, and cannot wait for it themselves.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        # stdin is closed at the end of the tests.
        if sys.stdin in select.select([sys.stdin, listener], [], [])[0]:
            return None
        channel, _ = listener.accept()
        with channel:
            message, files, _, _ = socket.recv_fds(channel, 1 << 20, 4)
        given = json.loads(message)
        if given["arguments"][:1] != ["serve"]:
            import_of_others(given["run"])
        if os.fork():
            for file in files:
                os.close(file)
            continue
        _end_with_parent()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        report = files.pop()
        if asked := os.fork():
            os.write(report, b"%d\n" % asked)
            _, status = os.waitpid(asked, 0)
            os.write(report, b"%d\n" % os.waitstatus_to_exitcode(status))
            os._exit(0)
        _end_with_parent()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.close(report)
        listener.close()
        return given, files


def _end_with_parent() -> None:
    """Have Linux kill this process when its parent ends: a test that fails leaves no server."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def become(
    streams: list[int],
    *,
    arguments: list[str],
    cores: list[int],
    folder: str,
    variables: dict[str, str],
) -> None:
    """Take on what a process gets that is started; `streams` are stdin, stdout and stderr."""
    for number, file in enumerate(streams):
        os.dup2(file, number)
        os.close(file)
    # The one of this process believes that its file can be sought in, which no pipe can.
    sys.stdout = open(1, "w", encoding=sys.stdout.encoding, closefd=False)  # noqa: SIM115
    os.sched_setaffinity(0, cores)
    os.chdir(folder)
    if read_at_start(variables) != read_at_start(dict(os.environ)):
        program = [sys.executable, "-m", "fovea_server.cli.main", *arguments]
        os.execve(sys.executable, program, variables)
    sys.argv = arguments if _is_program(arguments) else ["fovea", *arguments]
    os.environ.clear()
    os.environ.update(variables)


def _is_program(arguments: list[str]) -> bool:
    """Return whether a Python file is given, which changes `fovea` before it runs it."""
    return bool(arguments) and arguments[0].endswith(".py")


if __name__ == "__main__":
    import_of_servers()
    with socket.socket(fileno=int(sys.argv[1])) as listener:
        asked = asked_for(listener)
    if asked:
        given, streams = asked
        del given["run"]
        become(streams, **given)
        if _is_program(given["arguments"]):
            runpy.run_path(sys.argv[0], run_name="__main__")
        else:
            main()
