"""A model's configuration: from `config.pbtxt`, or from a request to load the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import orjson

from fovea_engines.repository.model_config import CONFIG_FILE, read_config
from fovea_engines.repository.triton_messages import model_config_messages
from fovea_preprocess.errors import InvalidModel
from fovea_server.models.config.config_check import check_config

_CONFIGS_FOLDER = "configs"
_IDLE_US = 1_000_000


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A configuration before the engine is opened, with Triton's defaults filled in.

    Attributes:
        message: the `ModelConfig` message; `completion.complete` fills it in from the engine.
    """

    message: Any

    @classmethod
    def read(cls, folder: Path, name: str, *, variant: str = "", required: bool = False) -> Self:
        """Read the configuration in a model's folder; defaults where there is none.

        Args:
            folder: of the model.
            name: of the model.
            variant: configs/VARIANT.pbtxt is read if it exists.
            required: there must be a configuration.

        Raises:
            InvalidModel: the file is no model configuration, contradicts itself, or is missing.
        """
        path = folder / _CONFIGS_FOLDER / f"{variant}.pbtxt"
        if not variant or not path.is_file():
            path = folder / CONFIG_FILE
        if required and not path.is_file():
            raise InvalidModel(f"{path} is not there, and nothing may be filled in: write it")
        return cls._of(read_config(path), name)

    @classmethod
    def parse(cls, text: str, name: str) -> Self:
        """Parse the JSON of a request to load a model; numbers may be strings.

        Raises:
            InvalidModel: it is no model configuration, or contradicts itself.
        """
        from google.protobuf import json_format

        message = model_config_messages().ModelConfig()
        try:
            said = orjson.loads(text)
            if not isinstance(said, dict):
                raise InvalidModel("Invalid config override: it is not a JSON object")
            json_format.ParseDict(said, message)
        except (orjson.JSONDecodeError, json_format.ParseError) as error:
            raise InvalidModel(f"Invalid config override: {error}") from error
        return cls._of(message, name)

    @classmethod
    def _of(cls, message: Any, name: str) -> Self:
        message.name = message.name or name
        add_defaults(message)
        check_config(message, name)
        return cls(message)

    @property
    def max_queue_delay_s(self) -> float | None:
        """Longest wait of a batch that is not full; None where not set."""
        delay_us = self.message.dynamic_batching.max_queue_delay_microseconds
        return delay_us / 1e6 if delay_us else None

    @property
    def has_tensors(self) -> bool:
        """True if it names all inputs and outputs, so that Triton fills none in."""
        return bool(self.message.input) and bool(self.message.output)

    @property
    def composing(self) -> dict[str, set[int]]:
        """Models that an ensemble runs -> their versions, -1 for any."""
        models: dict[str, set[int]] = {}
        for step in self.message.ensemble_scheduling.step:
            models.setdefault(step.model_name, set()).add(step.model_version)
        return models

    def served(self, versions: Sequence[int]) -> tuple[int, ...]:
        """Choose the versions to serve from those on disk (ascending).

        Raises:
            InvalidModel: the policy chooses none.
        """
        policy = self.message.version_policy
        if policy.HasField("all"):
            chosen = tuple(versions)
        elif policy.HasField("specific"):
            chosen = tuple(v for v in versions if v in policy.specific.versions)
        else:
            chosen = tuple(versions[-(policy.latest.num_versions or 1) :])
        if not chosen:
            raise InvalidModel(
                "at least one version must be available under the version policy of model "
                f"'{self.message.name}'"
            )
        return chosen


def add_defaults(message: Any) -> None:
    """Fill in the defaults that do not depend on the engine, as Triton does."""
    if message.version_policy.WhichOneof("policy_choice") is None:
        message.version_policy.latest.num_versions = 1
    if message.HasField("dynamic_batching"):
        _prefer_full_batches(message, message.dynamic_batching)
    if message.HasField("sequence_batching"):
        sequences = message.sequence_batching
        sequences.max_sequence_idle_microseconds = (
            sequences.max_sequence_idle_microseconds or _IDLE_US
        )
        if sequences.HasField("oldest"):
            _prefer_full_batches(message, sequences.oldest)
    if not message.HasField("ensemble_scheduling") and message.platform != "ensemble":
        for pinned in ("input_pinned_memory", "output_pinned_memory"):
            if not message.optimization.HasField(pinned):
                getattr(message.optimization, pinned).enable = True


def _prefer_full_batches(message: Any, batching: Any) -> None:
    if not batching.preferred_batch_size and message.max_batch_size > 0:
        batching.preferred_batch_size.append(message.max_batch_size)
