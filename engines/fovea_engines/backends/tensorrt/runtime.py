"""Loads TensorRT (10.13 or newer) or TensorRT for RTX, and hides the differences of their APIs.

There are three APIs: TensorRT 10, TensorRT 11 and TensorRT for RTX. Only this file handles their
differences. It detects them by attributes, not by version numbers. Other files of this package use
only names that all three APIs have. A test looks up every name in the real bindings
(tests/engines/backends/tensorrt/api_surface). The test requires these conventions:

- the module is always called `trt`, and names that all three have are written ``trt.Builder``;
- names that only some have are checked first in the same function, e.g. by ``hasattr(trt,
"ComputeCapability")``;
- variables have the name of their class: `builder` Builder, `config` IBuilderConfig, `network`
INetworkDefinition, `parser` OnnxParser, `layer` ILayer, `tensor` ITensor, `engine` ICudaEngine,
`context` IExecutionContext, `inspector` EngineInspector, `timing_cache` ITimingCache,
`deserializer` Runtime.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from threading import Lock
from typing import Any

from fovea_engines.backends.registry import get_backend
from fovea_engines.backends.tensorrt.log import Log, logger, strip_noise
from fovea_engines.device import gpu_here
from fovea_engines.session import TensorSpec
from fovea_preprocess.errors import BackendUnavailable, InvalidOption

TENSORRT = "tensorrt"
RTX = "tensorrt-rtx"

# Name of a backend -> names of its possible Python modules. The first installed module is used.
_MODULES = {TENSORRT: ("tensorrt",), RTX: ("tensorrt_rtx", "tensorrt_rtx_bindings")}

_H100 = {"90": "; for an H100 or H200, build with --backend tensorrt on a machine with this GPU"}

# TensorRT's name of an element type -> NumPy's name.
_DTYPES = {
    "FLOAT": "float32",
    "HALF": "float16",
    "BF16": "bfloat16",
    "FP8": "float8",
    "FP4": "float4",
    "INT64": "int64",
    "INT32": "int32",
    "INT8": "int8",
    "INT4": "int4",
    "UINT8": "uint8",
    "BOOL": "bool",
}


@dataclass(frozen=True, slots=True, eq=False)
class Runtime:
    """A loaded TensorRT or TensorRT for RTX.

    Attributes:
        backend: name of the backend.
        trt: Python module of the runtime.
        logger: `ILogger` that writes to `log`.
        log: receiver of the runtime's messages.
    """

    backend: str
    trt: Any
    logger: Any
    log: Log

    @property
    def version(self) -> str:
        """Return the version of the runtime, e.g. "11.4.0.106"."""
        return str(self.trt.__version__)

    @property
    def ahead_of_time(self) -> bool:
        """Return whether the runtime builds plans for GPUs that are not in this machine.

        The kernels of such a plan are compiled when a GPU loads the plan.
        """
        return hasattr(self.trt, "ComputeCapability")

    @property
    def compute_capabilities(self) -> tuple[str, ...]:
        """Return the compute capabilities for which it builds plans without a GPU, e.g. "89"."""
        kinds = getattr(self.trt, "ComputeCapability", None)
        names = [] if kinds is None else list(kinds.__members__)
        return tuple(name.removeprefix("SM") for name in names if name.startswith("SM"))

    def check_capabilities(self, capabilities: Sequence[str]) -> None:
        """Check that the runtime can build for compute capabilities.

        If `capabilities` is empty, check that it can build for this machine's GPU.

        Raises:
            InvalidOption: the runtime cannot build for one of them. The message lists the supported
                ones.
        """
        known = self.compute_capabilities
        if not known:
            if capabilities:
                raise InvalidOption(
                    f"TensorRT {self.version} builds for this machine's GPU only: leave "
                    "--compute-capability out, or build with --backend tensorrt-rtx"
                )
            return
        wanted = capabilities
        if not wanted:
            here = gpu_here()
            if here is None:
                raise InvalidOption(
                    "this machine has no GPU: give the compute capability of the GPUs to build "
                    f"for with --compute-capability ({', '.join(known)}), e.g. 80,89"
                )
            # A GPU that is newer than all listed GPUs is supported, because it compiles the kernels
            # itself. For another GPU that is not in the list, RTX builds a plan without an error,
            # but no GPU can load the plan (seen with 1.7 on an H200).
            newer = int(here.capability) > max(map(int, known))
            wanted = () if newer else (here.capability,)
        for capability in wanted:
            if capability not in known:
                raise InvalidOption(
                    f"TensorRT-RTX {self.version} does not support compute capability "
                    f"{capability!r}; it supports {', '.join(known)}" + _H100.get(capability, "")
                )

    def builder(self) -> Any:
        """Create a `Builder`.

        Raises:
            BackendUnavailable: the runtime needs a GPU, but this machine has none.
        """
        trt = self.trt
        with self.log.collect() as messages:
            try:
                return trt.Builder(self.logger)
            except TypeError as error:  # raised if the C++ factory returned nothing
                raise BackendUnavailable(
                    f"TensorRT {self.version} cannot build here ({' '.join(messages) or error}): "
                    "it needs an NVIDIA GPU and its driver; --backend tensorrt-rtx builds without "
                    "a GPU"
                ) from error

    def deserializer(self) -> Any:
        """Create a `trt.Runtime`.

        Raises:
            BackendUnavailable: TensorRT cannot start CUDA, e.g. because the driver is too old.
        """
        trt = self.trt
        with self.log.collect() as messages:
            try:
                return trt.Runtime(self.logger)
            except TypeError as error:
                raise BackendUnavailable(
                    f"TensorRT {self.version} does not start here "
                    f"({' '.join(messages) or error}): check with `fovea doctor` that the driver "
                    "is new enough for its CUDA version"
                ) from error

    def network(self, builder: Any) -> Any:
        """Create a strongly typed `INetworkDefinition`.

        TensorRT keeps the element types of the model.
        """
        trt = self.trt
        # Newer versions of TensorRT type every network strongly, and may not have this flag.
        flag = getattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
        return builder.create_network(0 if flag is None else 1 << int(flag))

    def set_target(self, config: Any, capabilities: Sequence[str]) -> None:
        """Set the compute capabilities of a build.

        If `capabilities` is empty, the build is for this machine's GPU.
        """
        if (kinds := getattr(self.trt, "ComputeCapability", None)) is None:
            return
        names = [f"SM{capability}" for capability in capabilities] or ["CURRENT"]
        config.num_compute_capabilities = len(names)
        for position, name in enumerate(names):
            config.set_compute_capability(getattr(kinds, name), position)

    def allow_capture(self, config: Any) -> None:
        """Build an engine that allocates no memory during a run.

        A CUDA graph can only record such a run.
        """
        trt = self.trt
        flag = getattr(trt.BuilderFlag, "REQUIRE_USER_ALLOCATION", None)
        if flag is not None:
            config.set_flag(flag)

    def rejection(self, plan: bytes | memoryview) -> str | None:
        """Return TensorRT's reason why it cannot load a plan, without loading the plan.

        If TensorRT finds no reason, or has no such check, return None.
        """
        trt = self.trt
        deserializer = self.deserializer()
        validity_of = getattr(deserializer, "get_engine_validity", None)
        if validity_of is None:
            return None
        with self.log.collect() as messages:
            validity, found = validity_of(plan)
        if validity.name != "INVALID":
            return None
        kinds = trt.EngineInvalidityDiagnostics.__members__.items()
        reasons = [name.replace("_", " ").lower() for name, bit in kinds if found & int(bit)]
        return ", ".join(reasons) or " ".join(map(strip_noise, messages)) or "no reason given"

    def runtime_config(self, engine: Any, known: bytes = b"") -> tuple[Any, Any]:
        """Configure the execution contexts of an engine.

        TensorRT for RTX is configured to compile all kernels for a shape during the first batch of
        this shape, so that a CUDA graph can record later batches. It is also configured to record
        no CUDA graphs itself, because Fovea records them.

        Args:
            engine: an `ICudaEngine`.
            known: compiled kernels of an earlier process, from `read_kernels`. TensorRT ignores
                kernels for another GPU or version.

        Returns:
            The `IRuntimeConfig`, and TensorRT for RTX's `IRuntimeCache` with compiled kernels. The
            cache is None for TensorRT, whose builds compile the kernels.
        """
        runtime_config = engine.create_runtime_config()
        if not hasattr(runtime_config, "create_runtime_cache"):
            return runtime_config, None
        cache = runtime_config.create_runtime_cache()
        if known:
            cache.deserialize(known)
        runtime_config.set_runtime_cache(cache)
        trt = self.trt
        eager = trt.DynamicShapesKernelSpecializationStrategy.EAGER
        runtime_config.dynamic_shapes_kernel_specialization_strategy = eager
        runtime_config.cuda_graph_strategy = trt.CudaGraphStrategy.DISABLED
        return runtime_config, cache


def dtype_name(dtype: Any) -> str:
    """Return NumPy's name of a `trt.DataType`, e.g. "float16"."""
    name = str(dtype.name)
    return _DTYPES.get(name, name.lower())


def tensor_spec(tensor: Any) -> TensorSpec:
    """Return the name, element type and shape of an `ITensor`."""
    return TensorSpec(tensor.name, dtype_name(tensor.dtype), tuple(tensor.shape))


_LOADED: dict[str, Runtime] = {}
_LOADING = Lock()


def load_runtime(backend: str) -> Runtime:
    """Load the runtime of a backend. Each call for the same backend returns the same object.

    Raises:
        BackendUnavailable: the runtime's module cannot be imported. The message names the remedy.
    """
    with _LOADING:
        if backend not in _LOADED:
            trt, log = _import(backend), Log()
            _LOADED[backend] = Runtime(backend, trt, logger(trt, log), log)
        return _LOADED[backend]


def _import(backend: str) -> Any:
    problems = []
    for module in _MODULES[backend]:
        try:
            return import_module(module)
        except ImportError as error:
            problems.append(str(error))
    remedy = get_backend(backend).installation
    raise BackendUnavailable(
        f"backend {backend!r} cannot be used ({'; '.join(problems)}): {remedy}"
    )
