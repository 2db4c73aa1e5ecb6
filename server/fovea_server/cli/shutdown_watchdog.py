"""Ends a server in time after the signal to stop, even if a part of it hangs."""

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

# Seconds after `grace_s` until the watchdog ends the process; a normal stop takes 0.1 s of them.
_SPARE_S = 3.0
# Seconds after `grace_s` until the kernel ends the process. Native code may hold the interpreter,
# so that the watchdog's thread does not run.
_LAST_S = 4.5


def has_terminal() -> bool:
    """Return True if the process belongs to a terminal that is still open."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


class ShutdownWatchdog:
    """Ends the process some seconds after `grace_s` from the signal to stop, if it still runs.

    Loading a model runs native code, for minutes if an engine is large, and cannot be interrupted.
    After the signal nobody waits for the model any more.
    """

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._signalled = Event()
        self._had_terminal = has_terminal()
        # The thread starts now, because later there may be no resources for one.
        Thread(target=self._run, name="leaving", daemon=True).start()

    def watch(self) -> None:
        """Handle the signals until a server does; until then SIGHUP has nothing to reload."""
        signal.signal(signal.SIGTERM, self._exit)
        signal.signal(signal.SIGINT, self._exit)
        self.watch_hang_ups(lambda: None)
        # Python restores the default signal handlers at exit. A second signal would then kill the
        # process, and orchestrators would report a failed stop.
        atexit.register(signal.signal, signal.SIGTERM, signal.SIG_IGN)

    def watch_hang_ups(self, reload: Callable[[], None]) -> None:
        """Call `reload` at each SIGHUP, but stop if the terminal was closed."""

        def hung_up(number: int, frame: FrameType | None) -> None:
            if self._had_terminal and not has_terminal():
                os.kill(os.getpid(), signal.SIGTERM)
            else:
                reload()

        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup has set it
            signal.signal(signal.SIGHUP, hung_up)

    def begin(self) -> None:
        """Start the countdown; only the first call has an effect."""
        if not self._signalled.is_set():
            self._signalled.set()
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(math.ceil(self._grace_s + _LAST_S))

    def _exit(self, number: int, frame: FrameType | None) -> None:
        if self._signalled.is_set() and number == signal.SIGTERM:
            return  # the process is stopping already
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
