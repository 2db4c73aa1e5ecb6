"""The settings to try, and their form in config.pbtxt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from fovea_engines.repository.config_pbtxt import config_of, update_config
from fovea_engines.repository.model_config import (
    NUM_STREAMS,
    NUM_THREADS,
    ModelConfig,
    ModelParameter,
    serve_only,
)
from fovea_engines.repository.model_config_scheduling import ModelDynamicBatching
from fovea_server.bench.tune.candidates import BuiltVersion

# Values to try for the time, in microseconds, that a batch may wait for more rows (entries of the
# batch).
_DELAYS_US = (0, 1000, 2000, 5000)
# Values to try for the number of parallel batches on a GPU; 0 is the default of the server.
_GPU_STREAMS = (0, 1, 3, 4)


@dataclass(frozen=True, slots=True)
class Setting:
    """One way to serve a model.

    Attributes:
        version: version of the model, which determines backend and precision.
        threads: number of CPU cores for all parallel calls together; 0 for a GPU.
        streams: number of parallel calls; on a CPU, at most one per core. 0 is the default for a
            GPU.
        max_batch: largest batch size. 0 for a CPU, where each image is a separate call; then the
            value in config.pbtxt does not change.
        delay_us: time in microseconds that a batch may wait for more rows; 0 for a CPU.
    """

    version: int
    threads: int
    streams: int
    max_batch: int
    delay_us: int


def grid(candidates: Sequence[BuiltVersion], cores: int) -> list[Setting]:
    """Return all valid combinations of settings.

    On a CPU, the values of threads and streams are the powers of two below the number of cores, and
    the number of cores. On a GPU, the batch sizes are the powers of two below the engine's largest
    size, and this size. Only batch sizes above 1 are combined with delays.
    """
    return [setting for one in candidates for setting in _settings(one, cores)]


def _settings(candidate: BuiltVersion, cores: int) -> Iterator[Setting]:
    if candidate.on_gpu:
        for streams, rows in product(_GPU_STREAMS, _powers(candidate.max_batch)):
            for delay_us in _DELAYS_US if rows > 1 else (0,):
                yield Setting(candidate.version, 0, streams, rows, delay_us)
        return
    for threads, streams in product(_powers(cores), repeat=2):
        if streams <= threads:
            yield Setting(candidate.version, threads, streams, 0, 0)


def _powers(most: int) -> list[int]:
    return [*(1 << power for power in range(most.bit_length()) if 1 << power < most), most]


def present_setting(config: ModelConfig, candidate: BuiltVersion, cores: int) -> Setting:
    """Return the setting with which a configuration serves a version."""
    if not candidate.on_gpu:
        threads = min(config.threads or cores, cores)
        streams = min(config.streams or threads, threads)
        return Setting(candidate.version, threads, streams, 0, 0)
    rows = min(config.max_batch_size or candidate.max_batch, candidate.max_batch)
    batching = config.dynamic_batching or ModelDynamicBatching()
    delay_us = batching.max_queue_delay_microseconds if rows > 1 else 0
    return Setting(candidate.version, 0, config.streams or 0, rows, delay_us)


def configure(
    config: ModelConfig,
    setting: Setting,
    served: BuiltVersion,
    candidate: BuiltVersion,
    cores: int,
    *,
    pin: bool,
) -> ModelConfig:
    """Return a configuration that serves a version with a setting.

    Args:
        config: the configuration as it was read; fields that the setting does not determine do not
            change.
        setting: setting for the candidate; values that are the server's defaults are not written.
        served: the version that the configuration serves now.
        candidate: the version to serve.
        cores: number of cores of this machine.
        pin: True to serve only the candidate; False to keep the version policy.
    """
    parameters = {k: v for k, v in config.parameters.items() if k not in (NUM_THREADS, NUM_STREAMS)}
    if setting.threads not in (0, cores):
        parameters[NUM_THREADS] = ModelParameter(str(setting.threads))
    if setting.streams != setting.threads:
        parameters[NUM_STREAMS] = ModelParameter(str(setting.streams))
    config = replace(config, parameters=parameters)
    if pin:
        config = replace(config, version_policy=serve_only(candidate.version))
    config = update_config(config, served.card, candidate.card)
    if not setting.max_batch:
        return config
    fewer = config.max_batch_size or setting.max_batch < candidate.max_batch
    if config_of(candidate.card).max_batch_size and fewer:
        config = replace(config, max_batch_size=setting.max_batch)
    if config.dynamic_batching is None and not setting.delay_us:
        return config
    batching = config.dynamic_batching or ModelDynamicBatching()
    sizes = tuple(size for size in batching.preferred_batch_size if size <= setting.max_batch)
    batching = replace(
        batching, max_queue_delay_microseconds=setting.delay_us, preferred_batch_size=sizes
    )
    return replace(config, dynamic_batching=batching)
