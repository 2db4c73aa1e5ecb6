"""Batches in, outputs out: one call of the engine for one or several requests."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fovea_engines.session import Array, Session
from fovea_preprocess.errors import FoveaError, InferenceFailed
from fovea_server.scheduling.job import Outputs
from fovea_server.statistics.model import Spans
from fovea_server.tensors.check import Checked

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Execution:
    """The result of one call of the engine.

    Attributes:
        outputs: one for each request of the batch; empty if it failed.
        began_ns: `time.monotonic_ns` at the start of making the batch.
        spans: times since then, by part.
        error: None if it succeeded.
    """

    outputs: Sequence[Outputs]
    began_ns: int
    spans: Spans
    error: FoveaError | None = None


def execute(name: str, session: Session, batch: Sequence[Checked], *, alone: bool) -> Execution:
    """Run requests with equal shapes as one batch. Never raises.

    A single request is read in place; several are copied once, into the batch.

    Args:
        name: of the model, for the log.
        session: the engine.
        batch: checked requests.
        alone: as in `Session.infer`.
    """
    began = computing = computed = time.monotonic_ns()
    outputs: Sequence[Outputs] = ()
    error: FoveaError | None = None
    try:
        feeds = batch[0].feeds if len(batch) == 1 else _joined(batch)
        computing = time.monotonic_ns()
        found = session.infer(feeds, alone=alone)
        computed = time.monotonic_ns()
        outputs = (found,) if len(batch) == 1 else _split(found, batch)
    except FoveaError as raised:
        error = raised
    except Exception:  # one batch must not end the model
        log.exception("model %s: a batch failed", name)
        error = InferenceFailed("an internal error; the server's log has the details")
    spans = Spans(0, computing - began, computed - computing, time.monotonic_ns() - computed)
    return Execution(outputs, began, spans, error)


def _joined(batch: Sequence[Checked]) -> dict[str, Array]:
    return {name: np.concatenate([part.feeds[name] for part in batch]) for name in batch[0].feeds}


def _split(found: Mapping[str, Array], batch: Sequence[Checked]) -> list[Outputs]:
    rows = sum(part.rows for part in batch)
    for name, array in found.items():
        if array.ndim == 0 or len(array) != rows:
            raise InferenceFailed(
                f"output '{name}' has shape {list(array.shape)} for a batch of {rows} rows, so "
                "requests cannot share a batch: set max_batch_size to 0 in config.pbtxt"
            )
    parts: list[Outputs] = []
    at = 0
    for part in batch:
        parts.append({name: array[at : at + part.rows] for name, array in found.items()})
        at += part.rows
    return parts
