"""A process that generates load, so that it shares no interpreter lock with what it measures."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection

import uvloop

from fovea_engines.session import Closing
from fovea_preprocess.errors import Unavailable
from fovea_server.bench.load import Burst, Endpoint, LoadSample
from fovea_server.bench.sender import apply


class Generator(Closing):
    """Sends requests to one server from a process of its own.

    Args:
        address: of the server.
        requests: heads with bodies, as they go over the wire; sent in turn.
    """

    def __init__(self, address: Endpoint, requests: Sequence[bytes]) -> None:
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=_generate, args=(theirs, address, requests), daemon=True
        )
        # Ctrl-C is for the parent, which asks what was measured so far; the child inherits this.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()

    def apply(self, burst: Burst) -> Iterator[LoadSample]:
        """Put a load on the server; yield what it meets, a few times a second.

        A burst that is not read to its end leaves the generator of no more use: close it.
        """
        try:
            self._pipe.send(burst)
            while True:
                sample: LoadSample = self._pipe.recv()
                yield sample
                if sample.ended:
                    return
        except (EOFError, OSError) as error:
            raise Unavailable("the load generator has died: run the command again") from error

    def close(self) -> None:
        """End the process. Calling it again does nothing."""
        self._process.kill()
        self._process.join()
        self._pipe.close()


def _generate(pipe: Connection, address: Endpoint, requests: Sequence[bytes]) -> None:
    # uvloop takes the signal mask back.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # In open loop there is a connection for each request that waits.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    while True:
        try:
            burst: Burst = pipe.recv()
        except EOFError:
            return
        uvloop.run(apply(address, requests, burst, pipe.send))
