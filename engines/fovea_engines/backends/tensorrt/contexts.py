"""Creates an engine's execution contexts for batch sizes."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from fovea_engines.backends.cuda.resources import Stream
from fovea_engines.backends.tensorrt.buckets import Bucket
from fovea_engines.backends.tensorrt.tensors import Tensor
from fovea_preprocess.errors import InferenceFailed


class Contexts:
    """Creates contexts that compute in memory of the caller, so that they can share it.

    Args:
        engine: an `ICudaEngine`.
        inputs: its inputs.
        trt: the module of the engine.
        runtime_config: an `IRuntimeConfig` of the engine; None uses the defaults.
    """

    def __init__(
        self, engine: Any, inputs: Sequence[Tensor], trt: Any, runtime_config: Any
    ) -> None:
        runtime_config = runtime_config or engine.create_runtime_config()
        strategy = trt.ExecutionContextAllocationStrategy.USER_MANAGED
        runtime_config.set_execution_context_allocation_strategy(strategy)
        self._engine = engine
        self._inputs = inputs
        self._runtime_config = runtime_config
        # TensorRT does not promise that two threads may create contexts of an engine at once.
        self._making = threading.Lock()

    def make(self, bucket: Bucket, stream: Stream) -> Any:
        """Create an `IExecutionContext`, without addresses and memory.

        Args:
            bucket: batch size and profile of the context.
            stream: the stream it will run in.

        Raises:
            InferenceFailed: TensorRT refused.
        """
        with self._making:
            context = self._engine.create_execution_context(self._runtime_config)
        made = (
            context is not None
            and context.set_optimization_profile_async(bucket.profile, stream.handle)
            and all(context.set_input_shape(t.name, t.shape(bucket.rows)) for t in self._inputs)
        )
        if not made:
            raise InferenceFailed(
                f"TensorRT made no context for batches of {bucket.rows}; the log says why. It may "
                "be short of memory: build the engine with a smaller --max-batch"
            )
        return context
