"""Execution contexts of an engine, set up for a batch size."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from fovea_engines.backends.cuda.base import Stream
from fovea_engines.backends.tensorrt.buckets import Bucket
from fovea_engines.backends.tensorrt.tensors import Tensor
from fovea_preprocess.errors import InferenceFailed


class Contexts:
    """Makes contexts that compute in memory which is given to them, so that they can share it.

    Args:
        engine: an `ICudaEngine`.
        inputs: its inputs.
        trt: the module of the engine.
        runtime_config: an `IRuntimeConfig` of the engine; None makes one with its defaults.
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
        # TensorRT does not promise that an engine may make contexts in two threads at once.
        self._making = threading.Lock()

    def make(self, bucket: Bucket, stream: Stream) -> Any:
        """A new `IExecutionContext`, without addresses and memory.

        Args:
            bucket: for which profile and shapes are set.
            stream: where it will run.

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
