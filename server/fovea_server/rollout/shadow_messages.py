"""The messages between a server and the process of a candidate."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from fovea_engines.results.options import PredictOptions
from fovea_engines.results.task_result import TaskResult
from fovea_engines.results.vocabulary import Vocabulary
from fovea_server.rollout.shadow_report import ShadowReport
from fovea_server.settings import Settings
from fovea_server.tensors.messages import SentImage


@dataclass(frozen=True, slots=True)
class ShadowCandidate:
    """The version to open, and what it is compared with."""

    folder: Path
    model: str
    version: int
    against: int
    task: str
    words: Vocabulary
    settings: Settings


@dataclass(frozen=True, slots=True)
class LiveImage:
    """An image that was answered, its answer, and whether its picture may be kept."""

    image: SentImage
    found: TaskResult
    options: PredictOptions
    request_id: str
    keep: bool


@dataclass(slots=True)
class ShadowProgress:
    """The answer to an image, or to None, which asks for a report."""

    report: ShadowReport | None = None
    pictures: dict[str, bytes] = field(default_factory=dict)
