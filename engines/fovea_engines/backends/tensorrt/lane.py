"""An execution context that is set up for one batch size and never changed again."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from fovea_engines.backends.cuda.base import Device, Graph, Stream
from fovea_preprocess.errors import InferenceFailed

log = logging.getLogger(__name__)


class Recorder:
    """Makes CUDA graphs; once one cannot be made, never again.

    A graph saves the launch of every single kernel: it matters for small models on fast GPUs.

    Args:
        device: of the streams.
        wanted: whether to record at all.
    """

    def __init__(self, device: Device, *, wanted: bool) -> None:
        self._device = device
        self._wanted = wanted

    def record(self, stream: Stream, enqueue: Callable[[], None]) -> Graph | None:
        """What `enqueue` puts into a stream; None where that stays without a graph."""
        if not self._wanted:
            return None
        try:
            with self._device.capture(stream) as capture:
                enqueue()
            return capture.graph()
        except InferenceFailed as error:
            self._wanted = False
            # As text: the error holds frames that hold the context, and a handler may keep it.
            reason = str(error)
            log.warning("this engine runs without CUDA graphs, kernel by kernel: %s", reason)
            return None


class Lane:
    """Runs batches of one size from fixed addresses to fixed addresses.

    A graph is bound to the state of the context that it was recorded from: hence a context a
    size, in place of one that is switched between sizes and profiles.

    Args:
        context: with profile, shapes, addresses and memory set.
        stream: where it always runs.
        recorder: of the graph.

    Raises:
        InferenceFailed: the first run failed.
    """

    def __init__(self, context: Any, stream: Stream, recorder: Recorder) -> None:
        self._context = context
        self._stream = stream
        # The first run loads kernels and sizes scratch memory, which cannot be recorded.
        self._execute()
        stream.synchronize()
        self._graph = recorder.record(stream, self._execute)

    def enqueue(self) -> None:
        """Enqueue one batch.

        Raises:
            InferenceFailed: TensorRT or the driver refused it.
        """
        if self._graph is None:
            self._execute()
        else:
            self._graph.launch(self._stream)

    def _execute(self) -> None:
        if not self._context.execute_async_v3(self._stream.handle):
            raise InferenceFailed("TensorRT refused to run this batch; the log says why")

    def close(self) -> None:
        """Give graph and context back; the stream must be done with them."""
        # At once, and where the device is current: an error on its way up may hold this lane.
        self._context = None
        if self._graph is not None:
            self._graph.close()
