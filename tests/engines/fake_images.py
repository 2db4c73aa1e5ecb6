"""Sessions that take images, on the stand-ins: the kernel is real, but compiled for the CPU."""

from pathlib import Path

import numpy as np
import onnx
from onnx import helper
from tests.engines import fake_tensorrt
from tests.engines.fake_tensorrt import FakeEngine
from tests.engines.host_kernel import HostDevice, compile_for_host

from fovea_engines.backends.tensorrt.cuda.letterbox import (
    LETTERBOX_FILE,
    LetterboxKernel,
    definitions,
    pack_kernel,
    source,
)
from fovea_engines.backends.tensorrt.session import TensorRTImageSession
from fovea_preprocess.spec import PreprocessSpec


def host_image(spec: PreprocessSpec, folder: Path) -> bytes:
    """The kernel for a spec, as a `HostDevice` loads it."""
    return compile_for_host(source(), definitions(spec), folder / f"{spec.digest}.so")


def write_host_letterbox(folder: Path, spec: PreprocessSpec) -> None:
    """Put that kernel beside a plan."""
    (folder / LETTERBOX_FILE).write_bytes(pack_kernel(host_image(spec, folder), spec))


def through(spec: PreprocessSpec) -> onnx.ModelProto:
    """A network that gives what it takes."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(spec.dtype))
    ends = [
        helper.make_tensor_value_info(name, kind, ["batch", *spec.row_shape])
        for name in ("images", "row")
    ]
    node = helper.make_node("Identity", ["images"], ["row"])
    graph = helper.make_graph([node], "through", ends[:1], ends[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)


def engine_of(model: Path, device: HostDevice, rows: int) -> FakeEngine:
    """An engine of any ONNX file with a dynamic batch, of up to so many rows."""
    made = FakeEngine(model, device)
    [name] = made.inputs()
    row = made.get_tensor_shape(name)[1:]
    made.profiles = [{name: tuple((n, *row) for n in (1, 1, rows))}]
    return made


def open_images(
    made: FakeEngine, compiled: bytes, spec: PreprocessSpec, *, max_batch: int, slots: int = 2
) -> TensorRTImageSession:
    """A session; `image` is of `host_image`."""
    with made.device.current():
        letterbox = LetterboxKernel(made.device, compiled, spec)
    return TensorRTImageSession(
        made.load(), made.device, fake_tensorrt, letterbox, max_batch=max_batch, slots=slots
    )
