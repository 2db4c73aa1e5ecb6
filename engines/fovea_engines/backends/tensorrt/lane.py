"""Runs an execution context that is fixed to one batch size."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from fovea_engines.backends.cuda.driver import Device
from fovea_engines.backends.cuda.resources import Graph, Stream
from fovea_preprocess.errors import InferenceFailed

log = logging.getLogger(__name__)


class Recorder:
    """Records CUDA graphs; after the first failure, never again.

    A graph saves the launch of every single kernel, which matters for small models on fast GPUs.

    Args:
        device: of the streams.
        wanted: False never records.
    """

    def __init__(self, device: Device, *, wanted: bool) -> None:
        self._device = device
        self._wanted = wanted

    def record(self, stream: Stream, enqueue: Callable[[], None]) -> Graph | None:
        """Record the work of `enqueue` in a stream; return None where that fails."""
        if not self._wanted:
            return None
        try:
            with self._device.capture(stream) as capture:
                enqueue()
            return capture.graph()
        except InferenceFailed as error:
            self._wanted = False
            # Logged as text: the error has frames that reference the context, and a handler may
            # keep it.
            reason = str(error)
            log.warning("this engine runs without CUDA graphs, kernel by kernel: %s", reason)
            return None


class Lane:
    """Runs batches of one size from fixed addresses to fixed addresses.

    A graph is bound to the state of the context it was recorded from, so there is one context per
    size, and none is switched between sizes and profiles.

    Args:
        context: with profile, shapes, addresses and memory set.
        stream: where it always runs.
        recorder: records the graph.

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
        """Release graph and context; the stream must have finished with them."""
        # Released now, while the device is current: an error that propagates may reference this
        # lane.
        self._context = None
        if self._graph is not None:
            self._graph.close()
