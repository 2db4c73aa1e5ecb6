"""A graph, compiled and opened, with the card that says what it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from fovea_engines.backends.registry import open_session
from fovea_engines.card import CARD_FORMAT, EngineCard, Precision
from fovea_engines.device import processor_name
from fovea_engines.digest import file_sha256
from fovea_engines.engine import Engine
from fovea_engines.plan import BuildPlan
from fovea_engines.prepare import PreparedModel

if TYPE_CHECKING:
    import onnx


def assemble(
    plan: BuildPlan,
    prepared: PreparedModel,
    graph: onnx.ModelProto,
    precision: Precision,
    folder: Path,
) -> Engine:
    """Compile a graph for the plan's backend into an empty folder, and open it.

    Raises:
        InvalidModel: the backend does not take it.
    """
    runtime = import_module(f"fovea_engines.backends.{plan.backend}")
    file: Path = runtime.engine_from_onnx(graph.SerializeToString(), folder)
    session = open_session(plan.backend, file, max_batch=plan.max_batch)
    # The engine file first: it is the one that is opened; model.bin belongs to model.xml.
    others = sorted(path for path in folder.iterdir() if path != file)
    card = EngineCard(
        format=CARD_FORMAT,
        name=plan.name,
        created=datetime.now(UTC).replace(microsecond=0),
        content_key="",
        backend=plan.backend,
        backend_version=plan.backend_version,
        device=processor_name(),
        precision=precision,
        onnx_sha256=prepared.sha256,
        files={path.name: file_sha256(path) for path in (file, *others)},
        max_batch=session.max_batch,
        inputs=session.inputs,
        outputs=session.outputs,
        family=prepared.head.family,
        reason=prepared.head.reason,
        task=prepared.head.task,
        labels=prepared.labels,
        preprocess=prepared.preprocess,
        agreement=None,
        build_seconds={},
        metadata=prepared.metadata,
    )
    return Engine(card, session)


@contextmanager
def trial(
    plan: BuildPlan, prepared: PreparedModel, graph: onnx.ModelProto, precision: Precision
) -> Iterator[Engine]:
    """An engine that is tried out and thrown away."""
    with (
        TemporaryDirectory(prefix="fovea-trial-") as folder,
        assemble(plan, prepared, graph, precision, Path(folder)) as engine,
    ):
        yield engine


def reference(
    plan: BuildPlan, prepared: PreparedModel, graph: onnx.ModelProto, precision: Precision
) -> AbstractContextManager[Engine]:
    """A trial on ONNX Runtime, which computes every graph as it is written."""
    return trial(replace(plan, backend="onnxruntime", max_batch=1), prepared, graph, precision)
