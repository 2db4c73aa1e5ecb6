"""Repositories of small models, and registries that serve them."""

import asyncio
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from fovea_server.models.model import ServedModel
from fovea_server.models.registry import Registry
from fovea_server.settings import Settings
from fovea_server.tensors.messages import InferRequest, InputTensor

ADDER_CONFIG = """
max_batch_size: 8
input [ { name: "X" data_type: TYPE_INT32 dims: [ 4 ] } ]
output [ { name: "Y" data_type: TYPE_INT32 dims: [ 4 ] } ]
"""


def adder(
    repository: Path,
    name: str,
    *,
    version: int = 1,
    add: int = 1,
    shape: tuple[int | str, ...] = ("N", 4),
    config: str | None = None,
    metadata: dict[str, str] | None = None,
    file: str = "model.onnx",
) -> Path:
    """Write a version of a model that adds a number to X and calls it Y; the model's folder."""
    graph = helper.make_graph(
        [helper.make_node("Add", ["X", "add"], ["Y"])],
        "adder",
        [helper.make_tensor_value_info("X", TensorProto.INT32, shape)],
        [helper.make_tensor_value_info("Y", TensorProto.INT32, shape)],
        [numpy_helper.from_array(np.array(add, np.int32), "add")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    helper.set_model_props(model, metadata or {})
    folder = repository / name / str(version)
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(model, folder / file)
    if config is not None:
        (folder.parent / "config.pbtxt").write_text(config)
    return folder.parent


def chain(repository: Path, name: str, *models: str, max_batch: int = 8, version: int = -1) -> Path:
    """Write an ensemble that runs adders one after the other; its folder."""
    steps = "".join(
        f"""step {{ model_name: "{model}" model_version: {version}
            input_map {{ key: "X" value: "{"X" if i == 0 else f"t{i}"}" }}
            output_map {{ key: "Y" value: "{"Y" if i == len(models) - 1 else f"t{i + 1}"}" }} }}"""
        for i, model in enumerate(models)
    )
    folder = repository / name
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(
        ADDER_CONFIG.replace("max_batch_size: 8", f"max_batch_size: {max_batch}")
        + f'platform: "ensemble"\nensemble_scheduling {{ {steps} }}'
    )
    return folder


def copied(models: Path, repository: Path, name: str) -> Path:
    """A model of the recordings in a repository of its own; its folder."""
    folder = shutil.copytree(models / name, repository / name)
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755)
    return folder


@contextmanager
def serving(repository: Path, **settings: object) -> Iterator[Registry]:
    """A registry whose start is over."""
    registry = Registry(Settings(model_repository=repository, **settings))
    registry.start()
    try:
        wait_until(lambda: registry.started)
        yield registry
    finally:
        registry.close()


def wait_until(true: object) -> None:
    """Look until it is so, for a minute at most."""
    turn = threading.Event()
    for _ in range(1200):
        if true():
            return
        turn.wait(0.05)
    raise AssertionError("it did not happen within a minute")


def answer(model: ServedModel, *, rows: int = 1) -> int:
    """What the adder makes of 0."""
    x = np.zeros((rows, 4) if model.config.max_batch_size else 4, np.int32)
    request = InferRequest(
        model.name, None, [InputTensor("X", "INT32", x.shape, memoryview(x.tobytes()))]
    )

    async def ask() -> int:
        response = await model.scheduler.infer(request)
        return int(response.outputs[0].array.flat[0])

    return asyncio.run(ask())
