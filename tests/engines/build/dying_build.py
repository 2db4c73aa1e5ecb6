"""`fovea` in a process that is killed, or finds the disk full, at a place that is given.

Arguments: "kill" or "full", the place, and then those of `fovea`. A place is a phase of the build
("compile"), a thing that a phase counts ("calibrate:3"), or the name of a file that the build is
about to write ("card.json"; "2" is the folder of version 2). A file is half written then.
"""

import errno
import os
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import fovea_server.cli.build
from fovea_engines.progress import ConsoleProgress
from fovea_server.cli.main import main

T = TypeVar("T")

_ACTION, _PLACE = sys.argv[1:3]


class _Dying(ConsoleProgress):
    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        with super().phase(name):
            self._name = name
            _reach(name)
            yield

    def each(self, things: Iterable[T], total: int) -> Iterator[T]:
        for done, thing in enumerate(super().each(things, total), 1):
            yield thing
            _reach(f"{self._name}:{done}")


def _reach(place: str) -> None:
    if place == _PLACE:
        if _ACTION == "full":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), place)
        os.kill(os.getpid(), signal.SIGKILL)


def _watch(event: str, arguments: tuple[object, ...]) -> None:
    if event == "os.rename":
        _reach(Path(os.fsdecode(arguments[1])).name)
    elif event == "open" and ".staging-" in str(arguments[0]):
        path = Path(str(arguments[0]))
        # Not yet there, so it is about to be written.
        if path.name == _PLACE and not path.exists():
            os.mknod(path)
            path.write_bytes(b"{")
            _reach(path.name)


fovea_server.cli.build.ConsoleProgress = _Dying
sys.argv[1:3] = []
sys.addaudithook(_watch)
main()
