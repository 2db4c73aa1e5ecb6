"""Compiles graphs to engines, creates their cards, and keeps a limited number of engines open."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from itertools import starmap
from pathlib import Path

import numpy as np
import onnx

from fovea_engines.backends.backend import CompilePlan, Encoding
from fovea_engines.backends.registry import REFERENCE_BACKEND, get_backend, open_session
from fovea_engines.build.plan import BuildPlan
from fovea_engines.build.prepare import PreparedModel
from fovea_engines.device import Gpu, gpu_here, processor_name, sets_for
from fovea_engines.engine import Engine
from fovea_engines.evaluation.reference import ReferenceSession
from fovea_engines.progress import Progress
from fovea_engines.quantization.half import round_to_half
from fovea_engines.repository.card import (
    CARD_FORMAT,
    NOTHING_SEEN,
    EngineCard,
    HeadCandidate,
    Precision,
)
from fovea_engines.repository.files import file_sha256
from fovea_engines.repository.locking import temporary_folder
from fovea_engines.session import Closing, Session, sort_like
from fovea_preprocess.errors import (
    BackendError,
    BackendUnavailable,
    BuildError,
    InvalidModel,
    UnsupportedModel,
)

# Largest total size of the files of open engines, in bytes. An open engine needs several times this
# memory. The limit exists, because a comparison of large models must not need much more memory than
# serving one model.
_MAX_BYTES = 256 << 20
# Number of engines that stay open even if they exceed the limit.
_FEWEST = 2


def assemble(
    plan: BuildPlan,
    prepared: PreparedModel,
    graph: onnx.ModelProto,
    precision: Precision,
    folder: Path,
    progress: Progress | None = None,
) -> Engine:
    """Compile a graph for the plan's backend into an empty directory, and open the engine.

    If the engine is for a GPU that is not in this machine, the returned engine runs its graph on
    ONNX Runtime, rounded like float16. The card records this in `judge`.
    """
    progress = progress or Progress()
    compile_plan = CompilePlan(
        source=prepared.sha256,
        precision=precision,
        preprocess=prepared.preprocess,
        builder=plan.builder,
        progress=progress,
    )
    with _alternative(plan, graph, folder):
        file = plan.runtime.compile(graph.SerializeToString(), folder, compile_plan)
    # The first file of a card is the file that a server opens, so the engine file comes first. The
    # list is created before the engine is opened: opening may add a file with compiled kernels, and
    # later starts overwrite that file.
    others = sorted(path for path in folder.iterdir() if path != file)
    files = {path.name: file_sha256(path) for path in (file, *others)}
    gpu = gpu_here() if plan.runtime.on_gpu else None
    with _alternative(plan, graph, folder):
        session, judge = _open(plan, prepared, graph, file, precision, gpu, progress)
    return Engine(_card(plan, prepared, precision, files, session, gpu, judge), session)


def _card(
    plan: BuildPlan,
    prepared: PreparedModel,
    precision: Precision,
    files: dict[str, str],
    session: Session,
    gpu: Gpu | None,
    judge: str | None,
) -> EngineCard:
    weight_bits = plan.weight_bits if precision == "int8" else 8
    inputs = sort_like(session.inputs, prepared.inputs)
    outputs = sort_like(session.outputs, prepared.outputs)
    names = {a.name: b.name for a, b in zip(prepared.outputs, outputs, strict=True)}
    unseen = NOTHING_SEEN if prepared.head.unseen and not prepared.unproven else None
    return EngineCard(
        format=CARD_FORMAT,
        name=plan.name,
        created=datetime.now(UTC).replace(microsecond=0),
        content_key="",
        backend=plan.backend,
        backend_version=plan.backend_version,
        device=gpu.name if gpu is not None and judge is None else processor_name(),
        precision=precision,
        onnx_sha256=prepared.sha256,
        files=files,
        max_batch=session.max_batch,
        inputs=inputs,
        outputs=outputs,
        family=prepared.head.family,
        reason=prepared.head.reason,
        task=prepared.head.task,
        labels=prepared.labels,
        preprocess=prepared.preprocess,
        agreement=None,
        build_seconds={},
        metadata=prepared.metadata,
        judge=judge,
        builder=plan.builder,
        gpu=None if _targets(plan) else gpu,
        weight_bits=weight_bits,
        # An INT8 engine with 7-bit weights runs on every CPU, because its sums do not overflow.
        cpu_features=() if plan.runtime.on_gpu or weight_bits == 7 else sets_for(precision),
        head_outputs=tuple(names[name] for name in prepared.head.outputs),
        num_classes=prepared.head.num_classes,
        skeleton=prepared.head.skeleton,
        unproven=prepared.unproven,
        head_candidates=tuple(starmap(HeadCandidate, prepared.head.candidates)),
        preprocess_from=prepared.preprocess_from,
        head_doubt=prepared.head.doubt or unseen,
    )


@contextmanager
def _alternative(plan: BuildPlan, graph: onnx.ModelProto, folder: Path) -> Iterator[None]:
    """Improve the error if the backend rejects the model in the `with` block.

    The new message reports whether the reference backend can compile the model.
    """
    try:
        yield
    except InvalidModel as error:
        if plan.runtime.on_gpu or plan.backend == REFERENCE_BACKEND:
            raise
        reason = str(error).replace(f"{folder}/", "")
        with suppress(UnsupportedModel):
            ReferenceSession(graph)
            reason = f"{reason}; --backend {REFERENCE_BACKEND} can compile it"
        raise InvalidModel(f"{plan.backend} cannot compile this model: {reason}") from error


def _open(
    plan: BuildPlan,
    prepared: PreparedModel,
    graph: onnx.ModelProto,
    file: Path,
    precision: Precision,
    gpu: Gpu | None,
    progress: Progress,
) -> tuple[Session, str | None]:
    """Open the engine.

    Returns:
        The engine's session and None. If the engine is for a GPU that is not in this machine, a
        session of the reference backend and the name of this backend.
    """
    try:
        return open_session(plan.backend, file, max_batch=plan.max_batch, precision=precision), None
    except BackendUnavailable as error:
        if not plan.runtime.on_gpu:
            raise
        if gpu is not None and gpu.capability in (_targets(plan) or (gpu.capability,)):
            raise BuildError(f"the engine does not run on its GPU, {gpu}: {error}") from error
        if prepared.unproven:
            raise BuildError(
                f"the engine cannot run on this machine ({error}), and no other runtime has its "
                "plugins: build it on a machine with the GPU that it is for"
            ) from error
        progress.note(
            f"the engine cannot run on this machine ({error}), so its accuracy is measured with "
            "ONNX Runtime"
        )
        return _stand_in(plan, graph), REFERENCE_BACKEND


def _targets(plan: BuildPlan) -> tuple[str, ...]:
    """Return the compute capabilities in a plan. If it builds for this machine's GPU, return ()."""
    return () if plan.builder is None else plan.builder.capabilities


def _stand_in(plan: BuildPlan, graph: onnx.ModelProto) -> Session:
    with temporary_folder("stand-in") as folder:
        content = round_to_half(graph).SerializeToString()
        file = get_backend(REFERENCE_BACKEND).compile(content, folder)
        return open_session(REFERENCE_BACKEND, file, max_batch=plan.max_batch)


@contextmanager
def candidate(
    plan: BuildPlan,
    prepared: PreparedModel,
    graph: onnx.ModelProto,
    precision: Precision,
    encoding: Encoding,
) -> Iterator[Engine]:
    """Compile and open a graph in a temporary directory, to measure it.

    The graph runs on the plan's backend. If this backend compiles for minutes, or `encoding` is not
    the backend's encoding, the graph runs on ONNX Runtime instead, rounded like float16.
    """
    if plan.emulates(encoding):
        with reference(plan, prepared, round_to_half(graph), precision) as engine:
            yield engine
        return
    with (
        temporary_folder("trial") as folder,
        assemble(plan, prepared, graph, precision, folder) as engine,
    ):
        yield engine


def reference(
    plan: BuildPlan, prepared: PreparedModel, graph: onnx.ModelProto, precision: Precision
) -> AbstractContextManager[Engine]:
    """Open a graph on ONNX Runtime, which computes every graph exactly as it is written."""
    # A plan must have a precision that its backend supports, and the backend onnxruntime does not
    # support bf16.
    able = plan.precision in get_backend(REFERENCE_BACKEND).precisions
    judged = replace(
        plan,
        backend=REFERENCE_BACKEND,
        precision=plan.precision if able else "fp32",
        max_batch=1,
        builder=None,
    )
    return candidate(judged, prepared, graph, precision, judged.runtime.encoding)


class HeldEngines(Closing):
    """A cache of open engines.

    The most recently used engines stay open while the total size of their files is at most
    `_MAX_BYTES`. At least two engines stay open.
    """

    def __init__(self) -> None:
        # Directory of an engine's files -> open engine. The most recently used engine is the last
        # one.
        self._open: dict[Path, Engine] = {}

    def fit(self, folders: Sequence[Path]) -> bool:
        """Return whether the engines in these directories can stay open at the same time."""
        return len(folders) <= _FEWEST or sum(map(_bytes, folders)) <= _MAX_BYTES

    def make_room(self) -> None:
        """Close the least recently used engines if they exceed the limits.

        Call it before you open one.
        """
        while len(self._open) >= _FEWEST and sum(map(_bytes, self._open)) > _MAX_BYTES:
            self._open.pop(next(iter(self._open))).close()

    def add(self, folder: Path, engine: Engine) -> None:
        """Add an open engine to the cache. `folder` is the directory of its files."""
        self._open[folder] = engine

    def engine(self, folder: Path, card: EngineCard) -> Engine:
        """Return the engine in a directory. If it was closed, open it again."""
        engine = self._open.pop(folder, None)
        if engine is None:
            self.make_room()
            path, rows = folder / next(iter(card.files)), card.max_batch
            session = open_session(card.backend, path, max_batch=rows, precision=card.precision)
            engine = Engine(card, session)
            try:
                warm_up(engine)
            except BackendError:
                engine.close()
                raise
        self._open[folder] = engine
        return engine

    def move(self, before: Path, after: Path) -> None:
        """Record that the files of an open engine were moved to another directory."""
        self._open[after] = self._open.pop(before)

    def close(self) -> None:
        """Close all open engines. A second call has no effect."""
        for engine in self._open.values():
            engine.close()


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def warm_up(engine: Engine) -> None:
    """Run an engine once in each thread layout.

    The function raises the errors of `Session.infer`.
    """
    image = engine.largest.card.inputs[0]
    feeds = engine.feeds(np.zeros((1, *image.shape[1:]), image.numpy_dtype))
    for alone in (True, False):
        engine.session.infer(feeds, alone=alone)
