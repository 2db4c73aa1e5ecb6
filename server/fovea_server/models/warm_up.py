"""Warms a model up, so that no request pays for a runtime's one-time work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fovea_engines.detect.options import PredictOptions
from fovea_engines.engine import Engine
from fovea_engines.repository.config_pbtxt import ModelConfig, ModelWarmup
from fovea_engines.session import Array, TensorSpec
from fovea_preprocess.errors import InvalidModel, InvalidRequest
from fovea_server.models.config.files import inside
from fovea_server.tensors.byte_strings import decode
from fovea_server.tensors.datatypes import NUMPY, protocol_name

_FOLDER = "warmup"
_SEED = 1


def warm_up_images(engine: Engine) -> None:
    """Run an empty image through all stages, alone and in a batch.

    Raises:
        InvalidModel: the card does not describe the engine.
        InferenceFailed: the engine refuses or breaks.
    """
    assert engine.preprocessor is not None, "the model takes images"
    image = engine.session.inputs[0]
    feeds = _zeros(engine.session.inputs, 1)
    if engine.preprocessor.spec.row_shape != image.shape[1:]:
        raise InvalidModel("its card.json does not fit the engine: build it again")
    empty = np.zeros((8, 8, 3), np.uint8)
    engine.preprocessor(empty, feeds[image.name][0])
    if engine.images is not None:
        engine.outputs_of(empty)
    for alone in (True, False):
        outputs = engine.session.infer(feeds, alone=alone)
        if engine.head is not None:
            engine.head.decode(outputs, 0, PredictOptions())


def run_samples(engine: Engine, config: ModelConfig, folder: Path) -> None:
    """Run the samples of `model_warmup` in the configuration.

    Args:
        engine: of the model.
        config: complete.
        folder: of the model; files of samples are in its folder `warmup`.

    Raises:
        InvalidModel: a sample cannot be made.
        InferenceFailed: the engine refuses one or breaks.
    """
    for sample in config.model_warmup:
        if sample.batch_size > max(1, config.max_batch_size):
            raise InvalidModel(
                f"warmup sample '{sample.name}': batch_size {sample.batch_size} is over "
                f"max_batch_size {config.max_batch_size}"
            )
        # Inputs that the sample does not set, such as the flags of sequences, are zero.
        feeds = _zeros(engine.session.inputs, max(1, sample.batch_size))
        for name in sample.inputs:
            feeds[name] = _input(config, sample, name, folder)
        for _ in range(max(1, sample.count)):
            engine.session.infer(feeds)


def _zeros(specs: tuple[TensorSpec, ...], rows: int) -> dict[str, Array]:
    feeds = {}
    for spec in specs:
        shape = tuple(abs(n) for n in spec.shape)
        if spec.shape[:1] == (-1,):
            shape = (rows, *shape[1:])
        feeds[spec.name] = np.zeros(shape, spec.numpy_dtype)
        if spec.dtype == "object":
            feeds[spec.name][...] = b""
    return feeds


def _input(config: ModelConfig, sample: ModelWarmup, name: str, folder: Path) -> Array:
    given = sample.inputs[name]
    about = f"warmup sample '{sample.name}', input '{name}': "
    tensor = next((tensor for tensor in config.input if tensor.name == name), None)
    if tensor is None:
        raise InvalidModel(f"{about}the model has no such input")
    dims = given.dims
    if any(n < 0 for n in dims):
        raise InvalidModel(f"{about}dims must all be fixed")
    if dims == tensor.dims:
        dims = tensor.engine_dims
    shape = (max(1, sample.batch_size), *dims) if config.max_batch_size else dims
    kind = protocol_name(given.data_type)
    if kind not in NUMPY:
        raise InvalidModel(f"{about}must specify 'data_type'")
    dtype = NUMPY[kind]
    if given.random_data is not None:
        return _random(shape, dtype, about)
    if given.input_data_file is not None:
        return _from_file(inside(folder / _FOLDER, given.input_data_file), shape, dtype, about)
    array = np.zeros(shape, dtype)
    if dtype.hasobject:
        array[...] = b""
    return array


def _random(shape: tuple[int, ...], dtype: np.dtype[Any], about: str) -> Array:
    generator = np.random.default_rng(_SEED)
    if dtype.hasobject:
        raise InvalidModel(f"{about}random_data is not for strings: use zero_data or a file")
    if dtype.kind in "iu":
        return generator.integers(0, 127, shape).astype(dtype)
    return generator.random(shape).astype(dtype)


def _from_file(file: Path, shape: tuple[int, ...], dtype: np.dtype[Any], about: str) -> Array:
    try:
        data = file.read_bytes()
    except OSError as error:
        raise InvalidModel(f"{about}{file} cannot be read ({error.strerror})") from error
    count = int(np.prod(shape))
    try:
        if dtype.hasobject:
            return decode(memoryview(data), count).reshape(shape)
        return np.frombuffer(data, dtype, count).reshape(shape)
    except (ValueError, InvalidRequest) as error:
        raise InvalidModel(
            f"{about}{file} has {len(data)} bytes, which are not {list(shape)} of {dtype.name}"
        ) from error
