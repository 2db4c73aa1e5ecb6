"""What a model's `config.pbtxt` asks of the server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fovea_engines.model_config import CONFIG_FILE, read_config


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The fields of Triton's model configuration that steer serving.

    Attributes:
        all_versions: serve every version.
        latest: serve the newest so many.
        specific: serve just these; empty for no such list.
        max_queue_delay_s: how long a batch that is not full waits; None where not said.
    """

    all_versions: bool = False
    latest: int = 1
    specific: tuple[int, ...] = ()
    max_queue_delay_s: float | None = None
    message: Any = field(default=None, compare=False)

    @classmethod
    def read(cls, model_folder: Path) -> ModelConfig:
        """From the model's folder; the defaults where it has no configuration.

        Raises:
            InvalidModel: the file is not a model configuration.
        """
        message = read_config(model_folder / CONFIG_FILE)
        policy = message.version_policy
        delay_us = message.dynamic_batching.max_queue_delay_microseconds
        return cls(
            all_versions=policy.HasField("all"),
            latest=policy.latest.num_versions or 1,
            specific=tuple(policy.specific.versions),
            max_queue_delay_s=delay_us / 1e6 if delay_us else None,
            message=message,
        )

    def served(self, versions: Sequence[int]) -> tuple[int, ...]:
        """Which of the versions on disk (ascending) are served."""
        if self.all_versions:
            return tuple(versions)
        if self.specific:
            return tuple(v for v in versions if v in self.specific)
        return tuple(versions[-self.latest :])
