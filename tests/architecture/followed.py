"""Run the `fovea` command, and write down which of the project's files its functions lie in.

    python -m tests.architecture.followed OUT COMMAND...

Adds a line of JSON, the paths, to OUT at SIGUSR1 and at the end: the files since the line before.
"""

import atexit
import json
import signal
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
_ran: set[str] = set()


def _follow(frame: FrameType, event: str, argument: Any) -> None:
    code = frame.f_code
    # The body of a module or a class runs when it is imported.
    if event == "call" and code.co_flags & 0x2:  # CO_NEWLOCALS: a function
        _ran.add(code.co_filename)


def _write(*_: object) -> None:
    files = (Path(file) for file in list(_ran))
    ours = sorted(str(file.relative_to(ROOT)) for file in files if file.is_relative_to(ROOT))
    _ran.clear()
    with OUT.open("a") as out:
        out.write(json.dumps([path for path in ours if "/fovea_" in path]) + "\n")


if __name__ == "__main__":
    OUT = Path(sys.argv[1])
    sys.argv = ["fovea", *sys.argv[2:]]
    atexit.register(_write)
    signal.signal(signal.SIGUSR1, _write)
    threading.setprofile(_follow)
    sys.setprofile(_follow)
    from fovea_server.commands.cli import main

    main()
