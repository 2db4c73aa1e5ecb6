"""Records CUDA graphs, which pycuda lacks, with cuda-bindings on pycuda's streams."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from fovea_engines.backends.cuda.base import Stream
from fovea_preprocess.errors import InferenceFailed


class RecordedGraph:
    """A `Graph`: recorded work, launched as one."""

    def __init__(self, graph: Any) -> None:
        self._executable = driver_call("cuGraphInstantiate", graph, 0)

    def launch(self, stream: Stream) -> None:
        """Enqueue all of it."""
        driver_call("cuGraphLaunch", self._executable, stream.handle)

    def close(self) -> None:
        """Release it. Calling it again does nothing."""
        if self._executable is not None:
            executable, self._executable = self._executable, None
            driver_call("cuGraphExecDestroy", executable)


class Recording:
    """A `Capture`: the recording of a `with` block of `capture`."""

    def __init__(self) -> None:
        self.recorded: RecordedGraph | None = None

    def graph(self) -> RecordedGraph:
        """Return the recorded graph, ready to launch; after the end of the `with` block."""
        if self.recorded is None:
            raise RuntimeError("there is no graph before the block that records it has ended")
        return self.recorded


@contextmanager
def capture(stream: Stream) -> Iterator[Recording]:
    """Record the work enqueued inside the block instead of running it.

    Other threads may use the GPU freely meanwhile (thread-local mode).

    Raises:
        InferenceFailed: some of it cannot be recorded; the stream is as before.
    """
    modes = import_module("cuda.bindings.driver").CUstreamCaptureMode
    mode = modes.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
    driver_call("cuStreamBeginCapture", stream.handle, mode)
    recording = Recording()
    try:
        yield recording
    except BaseException:
        _abandon(stream)
        raise
    graph = driver_call("cuStreamEndCapture", stream.handle)
    try:
        recording.recorded = RecordedGraph(graph)
    finally:
        driver_call("cuGraphDestroy", graph)


def driver_call(name: str, *arguments: Any) -> Any:
    """Call a function of CUDA's driver, and return its result; several results as a list.

    Raises:
        InferenceFailed: the call failed; the message has CUDA's error name.
    """
    result, *values = getattr(import_module("cuda.bindings.driver"), name)(*arguments)
    if result != type(result).CUDA_SUCCESS:
        raise InferenceFailed(
            f"{name} failed ({result.name}); a GPU that has faulted refuses everything "
            "from then on: if it does, restart the process"
        )
    return values if len(values) > 1 else next(iter(values), None)


def _abandon(stream: Stream) -> None:
    """End the recording, which a stream continues even after it refused something."""
    try:
        graph = driver_call("cuStreamEndCapture", stream.handle)
    except InferenceFailed:
        return
    driver_call("cuGraphDestroy", graph)
