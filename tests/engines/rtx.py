"""TensorRT for RTX, which builds engines without a GPU.

It shares parser and builder with TensorRT; running an engine takes a driver, and so does the
engine inspector.
"""

import re
from collections import Counter
from dataclasses import dataclass

import onnx
import pytest

trt = pytest.importorskip(
    "tensorrt_rtx_bindings", reason="TensorRT for RTX is not installed: pip install '.[rtx]'"
)


class _Log(trt.ILogger):
    """Keeps warnings and errors; TensorRT takes one logger for the life of a process."""

    def __init__(self):
        super().__init__()
        self.messages = []

    def log(self, severity, message):
        if severity <= trt.ILogger.WARNING:
            self.messages.append(message.strip())


_LOG = _Log()


@dataclass(frozen=True)
class Compiled:
    """What TensorRT makes of a graph: None where it refuses it, and what it says."""

    engine: bytes | None
    messages: list[str]

    @property
    def convolutions(self) -> Counter:
        """How many there are by the type that they multiply in: "float", "half" or "int8".

        Read from the plan that lies as text in an engine: the format is not documented.
        """
        text = b"\n".join(re.findall(rb"[\x20-\x7e]{4,}", self.engine)).decode()
        types = dict(
            re.findall(r'^ *tensor=\{.* name="(.*?)" .* type=(\w+) \}', text, re.MULTILINE)
        )
        weights = re.findall(r'^ *corrltn=\{.* input=\{".*?" "(.*?)" ', text, re.MULTILINE)
        return Counter(types[name] for name in weights)


def compile_graph(model: onnx.ModelProto, capability: str, rows: int = 4) -> Compiled:
    """Parse and build, strongly typed: every tensor has the type that the graph gives it.

    Args:
        model: with precision written into it.
        capability: of the GPU, as in "SM89".
        rows: most of a dynamic batch.
    """
    _LOG.messages.clear()
    builder = trt.Builder(_LOG)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, _LOG)
    if not parser.parse(model.SerializeToString()):
        errors = [parser.get_error(i).desc() for i in range(parser.num_errors)]
        return Compiled(None, [*errors, *_LOG.messages])
    config = builder.create_builder_config()
    config.num_compute_capabilities = 1
    config.set_compute_capability(getattr(trt.ComputeCapability, capability), 0)
    image = network.get_input(0)
    if image.shape[0] == -1:
        profile = builder.create_optimization_profile()
        row = tuple(image.shape[1:])
        profile.set_shape(image.name, (1, *row), (1, *row), (rows, *row))
        config.add_optimization_profile(profile)
    plan = builder.build_serialized_network(network, config)
    return Compiled(None if plan is None else bytes(memoryview(plan)), list(_LOG.messages))
