"""TensorRT for RTX, which builds engines without a GPU.

It shares parser and builder with TensorRT; running an engine takes a driver, and so does the
engine inspector.
"""

import json
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import onnx
import pytest

from fovea_engines.backends.tensorrt.builder import Plan, build_plan
from fovea_engines.backends.tensorrt.runtime import RTX, load_runtime
from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan
from fovea_engines.repository.options import BuilderOptions, Profile, parse_capabilities
from fovea_preprocess.errors import BuildError

trt = pytest.importorskip(
    "tensorrt_rtx_bindings", reason="TensorRT for RTX is not installed: pip install '.[rtx]'"
)


@dataclass(frozen=True)
class Compiled:
    """What TensorRT makes of a graph: None where it refuses it, and what it says."""

    plan: Plan | None
    messages: list[str]

    @property
    def engine(self) -> bytes | None:
        return None if self.plan is None else self.plan.data

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


def compile_graph(model: onnx.ModelProto, capabilities: str, rows: int = 4) -> Compiled:
    """Build an engine as Fovea does.

    Args:
        model: with precision written into it.
        capabilities: of the GPUs, as in "SM80,SM89".
        rows: most of a dynamic batch.
    """
    fixed = model.graph.input[0].type.tensor_type.shape.dim[0].dim_value
    profile = Profile(fixed, fixed, fixed) if fixed else Profile(1, 1, rows)
    options = BuilderOptions((profile,), capabilities=parse_capabilities(capabilities))
    try:
        runtime = load_runtime(RTX)
        with runtime.log.collect() as messages:
            plan = build_plan(model.SerializeToString(), options, runtime)
    except BuildError as error:
        return Compiled(None, [str(error)])
    return Compiled(plan, messages)


OLD = "1.0.0.7"
"""A release that is not installed."""


def rtx_version(repository: Path, model: Path, name: str, rows: int = 4, **options: object) -> Path:
    """Build the next version of a model for compute capability 80; its folder."""
    builder = BuilderOptions((Profile(1, min(2, rows), rows),), capabilities=("80",))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(repository.parent / "home"))
        plan = BuildPlan(
            model, name, repository, "tensorrt-rtx", max_batch=rows, builder=builder, **options
        )
        build(plan)
    return max((repository / name).glob("[0-9]*"))


def tamper(folder: Path, **fields: object) -> Path:
    """Change what a card says."""
    card = folder / "card.json"
    card.write_text(json.dumps(json.loads(card.read_text()) | fields))
    return folder
