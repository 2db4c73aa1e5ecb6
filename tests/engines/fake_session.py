"""Sessions on the stand-ins for GPU and TensorRT, of a model whose answer is known."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper
from tests.engines import fake_tensorrt
from tests.engines.fake_device import FakeDevice
from tests.engines.fake_tensorrt import FakeEngine

from fovea_engines.backends.tensorrt.cuda.resources import let_go
from fovea_engines.backends.tensorrt.session import TensorRTSession

COLUMNS = 4

# What fails of a load, as it is enqueued or run, and how many of it went well before. A recording
# that is refused is run plainly, twice: the third refusal is one too many.
LOAD_FAULTS = [
    ("context", "enqueue", 0),
    ("context", "enqueue", 3),
    ("profile", "enqueue", 1),
    ("address", "enqueue", 2),
    ("refuse", "enqueue", 0),
    ("refuse", "enqueue", 3),
    ("refuse", "enqueue", 8),
    ("execute", "run", 0),
    ("execute", "run", 3),
    ("copy_in", "run", 1),
]


def rows(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random((count, COLUMNS), np.float32)


def answer(x: np.ndarray) -> np.ndarray:
    """What the model computes: every row by itself."""
    return x * np.float32(2) + np.float32(1)


def model(path: Path, shape: list[int | str]) -> Path:
    """Write y = 2 x + 1."""
    nodes = [
        helper.make_node("Mul", ["x", "two"], ["twice"]),
        helper.make_node("Add", ["twice", "one"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "xy")
    numbers = [
        helper.make_tensor(n, TensorProto.FLOAT, [], [v]) for n, v in (("two", 2), ("one", 1))
    ]
    return save(path, helper.make_graph(nodes, "affine", [x], [y], numbers))


def save(path: Path, graph: onnx.GraphProto) -> Path:
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)
    return path


def engine(
    folder: Path, device: FakeDevice, *batches: tuple[int, int, int], **options: int
) -> FakeEngine:
    """An engine of `model` with a profile for each (least, best, greatest) batch."""
    path = model(folder / "affine.onnx", ["batch", COLUMNS])
    profiles = [{"x": tuple((batch, COLUMNS) for batch in each)} for each in batches]
    return FakeEngine(path, device, profiles, **options)


def open_session(
    made: FakeEngine, *, max_batch: int, slots: int = 2, graphs: bool = True
) -> TensorRTSession:
    """As `open_engine` opens one, but that the device stays open where it fails."""
    try:
        return TensorRTSession(
            made.load(), made.device, fake_tensorrt, max_batch=max_batch, slots=slots, graphs=graphs
        )
    except BaseException as error:
        let_go(error)
        raise
