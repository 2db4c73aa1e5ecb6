"""Opens the engine of a version, checks it against the configuration, and warms it up.

A runtime does some work only once, in its first executions. After the warm-up, no request waits for
this work.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from fovea_engines.backends.registry import BACKENDS
from fovea_engines.build.plan import MAX_BATCH
from fovea_engines.device import gpu_here
from fovea_engines.engine import Engine
from fovea_engines.plain_engine import PlainChoice
from fovea_engines.progress import Progress
from fovea_engines.repository.card import CARD_FILE, EngineCard
from fovea_engines.repository.config_pbtxt import config_of, update_config
from fovea_engines.repository.model_config import ModelConfig, ModelWarmup, WarmupInput
from fovea_engines.repository.model_config_scheduling import ModelDynamicBatching
from fovea_engines.results.options import PredictOptions
from fovea_engines.session import Array, TensorSpec
from fovea_preprocess.errors import InvalidModel, InvalidRequest, NotFound, ShuttingDown
from fovea_preprocess.image import ImageLimits
from fovea_server.models.config.config import complete_config
from fovea_server.models.config.config_check import check_amounts
from fovea_server.models.config.files import inside
from fovea_server.scheduling.job import ImageSource
from fovea_server.settings import Settings
from fovea_server.tensors.wire import NUMPY, decode_strings, protocol_name

log = logging.getLogger(__name__)

OpenEngine: TypeAlias = Callable[
    [Path, ModelConfig, Settings, Progress], tuple[Engine, ModelConfig]
]
"""Opens the engine of a version's directory.

Returns the engine, and the complete configuration of the version.
"""

_SAMPLES = "warmup"
_SEED = 1


def open_engine(
    folder: Path, config: ModelConfig, settings: Settings, progress: Progress
) -> tuple[Engine, ModelConfig]:
    """Open the engine of a version's directory, and complete the configuration of the version.

    Returns:
        The engine, and the complete configuration.

    Raises:
        ShuttingDown: the load was cancelled.
        NotFound, InvalidModel, InvalidOption, BackendUnavailable: `Engine.open` raised them.
        InvalidModel: the configuration does not fit the engine, or a warm-up sample is invalid.
        InferenceFailed: the engine rejected a warm-up input or failed.
    """
    check_amounts(config)
    file = _file(config)
    if file:
        inside(folder, file)
    choice = PlainChoice(file, config.backend, _max_batch(config, file, settings))
    threads, streams = config.threads, config.streams
    if threads is None or (settings.threads is not None and settings.threads < threads):
        threads = settings.threads
    allowed = settings.allow_code
    engine = Engine.open(folder, choice, threads=threads, streams=streams, allow_code=allowed)
    try:
        config = _adapt_to_version(engine.card, config, folder)
        _check_batch(engine, config.max_batch_size)
        config = complete_config(config, engine, fill_in=not settings.disable_auto_complete_config)
        if engine.preprocessor is not None:
            warm_up_images(engine)
        run_samples(engine, config, folder.parent, settings.max_inflight_bytes, progress)
    except BaseException:
        engine.close()
        raise
    return engine, config


def images_of(engine: Engine, config: ModelConfig, settings: Settings) -> ImageSource | None:
    """Return the object that makes jobs from images for an engine.

    Return None if the engine takes no images.
    """
    if engine.preprocessor is None:
        return None
    batching = config.dynamic_batching or ModelDynamicBatching()
    delay_us = batching.max_queue_delay_microseconds or round(settings.max_queue_delay_ms * 1000)
    rows = min(engine.rows, config.max_batch_size or engine.rows)
    return ImageSource(engine, image_limits(settings), max_rows=rows, delay_us=delay_us)


def image_limits(settings: Settings) -> ImageLimits:
    """Return the limits on images that clients send."""
    return ImageLimits(
        settings.max_image_bytes,
        int(settings.max_megapixels * 1e6),
        "send a smaller image, compress it more, or raise the server's --max-image-mb",
        "send a smaller image, or raise the server's --max-megapixels",
    )


def _file(config: ModelConfig) -> str:
    """Return the engine file that the configuration names for this machine; "" if there is none."""
    gpu = gpu_here() if config.cc_model_filenames else None
    if gpu is not None:
        dotted = f"{gpu.capability[:-1]}.{gpu.capability[-1]}"
        if (special := config.cc_model_filenames.get(dotted)) is not None:
            return special
    return config.default_model_filename


def _max_batch(config: ModelConfig, file: str, settings: Settings) -> int:
    """Return the configured batch size for an engine without a card, or Triton's default."""
    configured = config.max_batch_size
    if configured or config.has_tensors or settings.disable_auto_complete_config:
        return configured
    name = config.backend
    chosen = (one for one in BACKENDS.values() if name == one.name or file.endswith(one.suffixes))
    # An engine of these backends accepts only the batch sizes for which it was built.
    built = any(one.takes_builder for one in chosen)
    return 1 if built else settings.default_max_batch_size


def _adapt_to_version(card: EngineCard, config: ModelConfig, folder: Path) -> ModelConfig:
    """Adapt the configuration of a model to one of its versions.

    A model has one config.pbtxt, and each build overwrites it for the new version. An older version
    may take smaller batches or other image sizes than the newest version, and must still load after
    a rollback.
    """

    def fits(other: EngineCard) -> bool:
        built = config_of(other)
        return (config.max_batch_size, config.input, config.output) == (
            built.max_batch_size,
            built.input,
            built.output,
        )

    if card.created is None or fits(card):
        return config
    for path in folder.parent.glob(f"[1-9]*/{CARD_FILE}"):
        try:
            other = EngineCard.read(path)
        except (InvalidModel, NotFound):
            continue
        if fits(other):
            return update_config(config, other, card)
    return config


def _check_batch(engine: Engine, configured: int) -> None:
    rows, built = engine.session.max_batch, engine.card.created is not None
    # Each buffer for images holds a whole batch, so the batch size is limited.
    if (rows > MAX_BATCH and engine.preprocessor is not None) or (built and rows < 1):
        raise InvalidModel(
            f"its max_batch is {rows}, but must be from 1 to {MAX_BATCH}: build the engine again, "
            "or correct max_batch_size in config.pbtxt if the version has no card.json"
        )
    if built and configured > rows:
        raise InvalidModel(
            f"max_batch_size is {configured} in config.pbtxt, over the engine's maximum of "
            f"{rows}: lower it, or build the engine again with a larger --max-batch"
        )


def warm_up_images(engine: Engine) -> None:
    """Run an empty image through all stages, with both values of `alone` of `Session.infer`."""
    assert engine.preprocessor is not None, "the model takes images"
    image = engine.session.inputs[0]
    feeds = {spec.name: _zero(spec) for spec in _size_inputs(engine.session.inputs, 1)}
    row = engine.preprocessor.spec.row_shape
    taken = tuple(n if m == -1 else m for n, m in zip(row, image.shape[1:], strict=False))
    if len(image.shape) != 1 + len(row) or taken != row:
        raise InvalidModel("the card.json does not match the engine: build the engine again")
    empty = np.zeros((8, 8, 3), np.uint8)
    feeds[image.name], _ = engine.preprocessor.row(empty)
    if engine.images is not None:
        engine.outputs_of(empty)
    for alone in (True, False):
        outputs = engine.session.infer(feeds, alone=alone)
        if engine.head is not None:
            engine.head.decode(outputs, 0, PredictOptions())


def run_samples(
    engine: Engine, config: ModelConfig, folder: Path, most_bytes: int, progress: Progress
) -> None:
    """Run the samples of `model_warmup`; their files are in the directory `warmup` of the model."""
    for sample in config.model_warmup:
        if sample.batch_size > max(1, config.max_batch_size):
            raise InvalidModel(
                f"warmup sample '{sample.name}': batch_size {sample.batch_size} exceeds "
                f"max_batch_size {config.max_batch_size}: lower it"
            )
        # Inputs that the sample does not set are filled with zeros, for example the flags of
        # sequences.
        specs = {spec.name: spec for spec in _size_inputs(engine.session.inputs, sample.batch_size)}
        specs |= {name: _spec(config, sample, name) for name in sample.inputs}
        # Random values take eight bytes each before they are converted to the type of the input.
        size = sum(prod(spec.shape) * max(8, spec.numpy_dtype.itemsize) for spec in specs.values())
        if size > most_bytes:
            raise InvalidModel(
                f"warmup sample '{sample.name}': its inputs need {size >> 20} MiB, over the limit "
                f"of {most_bytes >> 20} MiB for all requests together: lower its batch_size or "
                "dims, or raise the server's --max-inflight-mb"
            )
        log.debug("model %s: warm-up sample %s", config.name, sample.name)
        feeds = {name: _input(sample, spec, folder) for name, spec in specs.items()}
        for _ in range(max(1, sample.count)):
            if progress.cancelled:
                raise ShuttingDown("the server is stopping: load the model after its restart")
            engine.session.infer(feeds)


def _size_inputs(specs: Iterable[TensorSpec], rows: int) -> Iterator[TensorSpec]:
    for spec in specs:
        shape = tuple(abs(n) for n in spec.shape)
        if spec.shape[:1] == (-1,):
            shape = (max(1, rows), *shape[1:])
        yield replace(spec, shape=shape)


def _zero(spec: TensorSpec) -> Array:
    dtype = spec.numpy_dtype
    return np.full(spec.shape, b"" if dtype.hasobject else 0, dtype)


def _about(sample: ModelWarmup, name: str) -> str:
    return f"warmup sample '{sample.name}', input '{name}': "


def _spec(config: ModelConfig, sample: ModelWarmup, name: str) -> TensorSpec:
    """Return the type and shape of an input that a sample sets."""
    given, about = sample.inputs[name], _about(sample, name)
    tensor = next((tensor for tensor in config.input if tensor.name == name), None)
    if tensor is None:
        raise InvalidModel(f"{about}the model has no input with that name")
    dims = given.dims
    if any(n < 0 for n in dims):
        raise InvalidModel(f"{about}dims must all be fixed")
    if dims == tensor.dims:
        dims = tensor.engine_dims
    shape = (max(1, sample.batch_size), *dims) if config.max_batch_size else dims
    kind = protocol_name(given.data_type)
    if kind not in NUMPY:
        raise InvalidModel(f"{about}must specify 'data_type'")
    return TensorSpec(name, NUMPY[kind].name, shape)


def _input(sample: ModelWarmup, spec: TensorSpec, folder: Path) -> Array:
    given, about = sample.inputs.get(spec.name, WarmupInput()), _about(sample, spec.name)
    shape, dtype = spec.shape, spec.numpy_dtype
    if given.random_data is not None:
        return _random(shape, dtype, about)
    if given.input_data_file is not None:
        return _read_sample(inside(folder / _SAMPLES, given.input_data_file), shape, dtype, about)
    return _zero(spec)


def _random(shape: tuple[int, ...], dtype: np.dtype[Any], about: str) -> Array:
    generator = np.random.default_rng(_SEED)
    if dtype.hasobject:
        raise InvalidModel(f"{about}random_data does not support strings: use zero_data or a file")
    if dtype.kind in "iu":
        return generator.integers(0, 127, shape).astype(dtype)
    return generator.random(shape).astype(dtype)


def _read_sample(file: Path, shape: tuple[int, ...], dtype: np.dtype[Any], about: str) -> Array:
    try:
        data = file.read_bytes()
    except OSError as error:
        raise InvalidModel(f"{about}{file} cannot be read ({error.strerror})") from error
    count = int(np.prod(shape))
    try:
        if dtype.hasobject:
            return decode_strings(memoryview(data), count).reshape(shape)
        return np.frombuffer(data, dtype, count).reshape(shape)
    except (ValueError, InvalidRequest) as error:
        raise InvalidModel(
            f"{about}{file} has {len(data)} bytes, which do not fit the shape {list(shape)} of "
            f"type {dtype.name}"
        ) from error
