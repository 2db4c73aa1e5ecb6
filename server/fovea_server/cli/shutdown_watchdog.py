"""Ends a server in time after a signal to stop, even if a part of the server hangs."""

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

# Time in seconds after `grace_s` until the watchdog ends the process. A normal stop takes 0.1 s of
# this time.
_SPARE_S = 3.0
# Time in seconds after `grace_s` until an alarm of the kernel ends the process. The watchdog's
# thread cannot run while native code holds the interpreter's lock.
_LAST_S = 4.5


def has_terminal() -> bool:
    """Return whether the process belongs to a terminal that is still open."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


class ShutdownWatchdog:
    """Ends the process if it still runs some seconds after its time to stop (`grace_s`) is over.

    Loading a model runs native code, which takes minutes for a large engine and cannot be
    interrupted. After the signal to stop, no client waits for the model any more.
    """

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._signalled = Event()
        self._had_terminal = has_terminal()
        # The thread is started now, because later the system may have no resources for a thread.
        Thread(target=self._run, name="leaving", daemon=True).start()

    def watch(self) -> None:
        """Handle the signals until the server handles them.

        SIGHUP has nothing to reload before that.
        """
        signal.signal(signal.SIGTERM, self._exit)
        signal.signal(signal.SIGINT, self._exit)
        self.watch_hang_ups(lambda: None)
        # Python restores the default signal handlers at exit. Then a second signal would kill the
        # process, and orchestrators would report that the stop failed.
        atexit.register(signal.signal, signal.SIGTERM, signal.SIG_IGN)

    def watch_hang_ups(self, reload: Callable[[], None]) -> None:
        """Call `reload` at each SIGHUP; if the terminal was closed, stop the process instead."""

        def hung_up(number: int, frame: FrameType | None) -> None:
            if self._had_terminal and not has_terminal():
                os.kill(os.getpid(), signal.SIGTERM)
            else:
                reload()

        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup sets SIG_IGN
            signal.signal(signal.SIGHUP, hung_up)

    def begin(self) -> None:
        """Start the countdown to the end of the process; only the first call has an effect."""
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
            "the process ends now, because a part of the server (such as a model that loads) did "
            "not stop within %g s",
            self._grace_s,
        )
        SERVER_LOG.close()
        os._exit(0)
