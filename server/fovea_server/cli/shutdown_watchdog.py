"""Ends a server in time after the signal to stop, whatever it does then."""

from __future__ import annotations

import atexit
import logging
import math
import os
import signal
import sys
from collections.abc import Callable
from threading import Event, Thread
from types import FrameType

from fovea_server.logs import SERVER_LOG

log = logging.getLogger(__name__)

# Over the time that requests have: a stop without a fault takes a tenth of a second longer.
_SPARE_S = 3.0
# Then the kernel ends the process. Native code may hold the interpreter, so that no thread runs.
_LAST_S = 4.5


def has_terminal() -> bool:
    """Return True if the process belongs to a terminal that is still open."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


class ShutdownWatchdog:
    """Ends the process `grace_s` and a little after the signal to stop, if it is still there.

    Loading a model runs native code, for minutes where an engine is large, and nothing interrupts
    that. Nobody waits for the model any more.
    """

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._signalled = Event()
        self._had_terminal = has_terminal()
        # Started now: later there may be no room for a thread.
        Thread(target=self._run, name="leaving", daemon=True).start()

    def watch(self) -> None:
        """Take the signals until a server does; SIGHUP has nothing to reload until then."""
        signal.signal(signal.SIGTERM, self._exit)
        signal.signal(signal.SIGINT, self._exit)
        self.watch_hang_ups(lambda: None)
        # Python gives signals back to the kernel while it ends. That would kill the process, and
        # orchestrators would report a failed stop.
        atexit.register(signal.signal, signal.SIGTERM, signal.SIG_IGN)

    def watch_hang_ups(self, reload: Callable[[], None]) -> None:
        """Call `reload` at each SIGHUP, but stop where the terminal was closed."""

        def hung_up(number: int, frame: FrameType | None) -> None:
            if self._had_terminal and not has_terminal():
                os.kill(os.getpid(), signal.SIGTERM)
            else:
                reload()

        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup sets it
            signal.signal(signal.SIGHUP, hung_up)

    def begin(self) -> None:
        """Start the time, at the first call."""
        if not self._signalled.is_set():
            self._signalled.set()
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(math.ceil(self._grace_s + _LAST_S))

    def _exit(self, number: int, frame: FrameType | None) -> None:
        if self._signalled.is_set() and number == signal.SIGTERM:
            return  # it stops already
        self.begin()
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        sys.exit(128 + number)

    def _run(self) -> None:
        self._signalled.wait()
        Event().wait(self._grace_s + _SPARE_S)
        log.error(
            "the server ends now: something did not stop within %g s, such as a model that is "
            "being loaded",
            self._grace_s,
        )
        SERVER_LOG.close()
        os._exit(0)
