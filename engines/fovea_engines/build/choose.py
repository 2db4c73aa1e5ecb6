"""Times the backends and precisions of a build, and keeps the fastest that passes the gate."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from fovea_engines.build.assemble import assemble, candidate
from fovea_engines.build.gate import measure_engine, objection
from fovea_engines.build.graphs import Graphs, fuse, make_graphs
from fovea_engines.build.labelled import LabelledEvaluation
from fovea_engines.build.plan import BuildPlan, Choice
from fovea_engines.build.prepare import PreparedModel
from fovea_engines.device import gpu_here
from fovea_engines.engine import Engine
from fovea_engines.evaluate.samples import read_rows
from fovea_engines.evaluate.speed import fastest, time_sessions
from fovea_engines.progress import Progress
from fovea_engines.repository.card import EngineCard, Precision
from fovea_engines.repository.figures import CandidateFigures
from fovea_preprocess.errors import (
    BackendError,
    BuildError,
    Disagreement,
    FoveaError,
    InvalidOption,
)

# Images that the calls of a measurement take turns with.
_IMAGES = 8


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """A compiled engine: the plan of its choice alone, and the graph that it computes, `fused`."""

    plan: BuildPlan
    graphs: Graphs
    fused: PreparedModel
    engine: Engine

    @property
    def choice(self) -> Choice:
        """Return backend and precision."""
        return self.plan.backend, self.graphs.precision

    def verified(
        self, prepared: PreparedModel, truth: LabelledEvaluation | None, progress: Progress
    ) -> EngineCard:
        """Return the card with its figures, and with `refused` where they are not good enough.

        Raises Disagreement as `measure_engine`.
        """
        card = measure_engine(
            self.plan, prepared, self.graphs, self.fused, self.engine, truth, progress
        )
        return replace(card, refused=objection(card, self.plan.max_drop))


@contextmanager
def open_chosen(
    plan: BuildPlan,
    prepared: PreparedModel,
    truth: LabelledEvaluation | None,
    folder: Path,
    progress: Progress,
) -> Iterator[tuple[Candidate, EngineCard]]:
    """Build the engine of a plan into an empty folder, and yield it with its card.

    Of several choices it is the fastest that passes the gate. Where none does, the card says in
    `refused` why, or the first error is raised.
    """
    if not plan.choices:
        graphs = make_graphs(plan, prepared, truth, progress)
        one = _compile(plan, prepared, graphs, folder, progress)
        with one.engine:
            yield one, one.verified(prepared, truth, progress)
        return
    if (gpu := gpu_here()) is not None:
        progress.note(f"auto is for CPUs: for the {gpu} give --backend tensorrt or tensorrt-rtx")
    if prepared.quantised:  # by its exporter, and built as it is
        names: dict[Precision, Precision] = {"fp32": "int8", "bf16": "int8"}
        choices = ((backend, names.get(one, one)) for backend, one in plan.choices)
        plan = replace(plan, choices=tuple(dict.fromkeys(choices)))
    with ExitStack() as opened:
        one, card = _Chooser(plan, prepared, truth, progress).choose(folder, opened)
        for file in _folder(folder, one.choice).iterdir():
            file.rename(folder / file.name)
        for choice in plan.choices:
            shutil.rmtree(_folder(folder, choice), ignore_errors=True)
        yield one, card


def _compile(
    plan: BuildPlan,
    prepared: PreparedModel,
    graphs: Graphs,
    folder: Path,
    progress: Progress,
    phase: str = "compile",
) -> Candidate:
    fused = fuse(plan, prepared, graphs.served, progress)
    with progress.phase(phase):
        engine = assemble(plan, fused, fused.graph, graphs.precision, folder, progress)
    return Candidate(plan, graphs, fused, engine)


def _folder(folder: Path, choice: Choice) -> Path:
    return folder / "-".join(choice)


class _Chooser:
    """Compiles the choices of a plan, times them, and verifies the fastest of each precision."""

    def __init__(
        self,
        plan: BuildPlan,
        prepared: PreparedModel,
        truth: LabelledEvaluation | None,
        progress: Progress,
    ) -> None:
        self._plan = plan
        self._prepared = prepared
        self._truth = truth
        self._progress = progress
        self._figures = {one: CandidateFigures(*one) for one in plan.choices}
        self._graphs: dict[Precision, Graphs | BuildError] = {}
        self._rates: dict[Choice, Sequence[float]] = {}
        self._errors: list[FoveaError] = []

    def choose(self, folder: Path, opened: ExitStack) -> tuple[Candidate, EngineCard]:
        """Return the engine to keep, which `opened` will close with the others, and its card."""
        candidates = list(self._compile_each(folder, opened))
        if candidates:
            self._time(candidates)
        cards = dict(self._verify(candidates))
        if not cards:
            raise self._errors[0]
        good = [one for one in candidates if (c := cards.get(one.choice)) and not c.refused]
        kept = self._fastest(good) if good else next(o for o in candidates if o.choice in cards)
        if good:
            self._found(kept.choice, kept=True)
            why = self._reason(kept, candidates)
            self._progress.note(f"kept {_name(kept.choice)}, for {self._plan.goal}: {why}")
        figures = tuple(self._figures.values())
        return kept, replace(cards[kept.choice], candidates=figures, goal=self._plan.goal)

    def _compile_each(self, folder: Path, opened: ExitStack) -> Iterator[Candidate]:
        for choice in self._plan.choices:
            try:
                plan = self._plan_of(*choice)
            except InvalidOption as error:
                self._drop(choice, error)
                continue
            own = _folder(folder, choice)
            own.mkdir()
            try:
                graphs = self._graphs_of(plan)
                phase = f"compile {_name(choice)}"
                one = _compile(plan, self._prepared, graphs, own, self._progress, phase)
                opened.enter_context(one.engine)
                [feed] = self._feeds(one, 1)
                for alone in (True, False):
                    one.engine.session.infer(feed, alone=alone)
            except (BuildError, BackendError) as error:
                self._drop(choice, error, own)
            else:
                yield one

    def _plan_of(self, backend: str, precision: Precision) -> BuildPlan:
        """Return the plan of one choice; InvalidOption where it cannot be on this machine."""
        plan = self._plan.choice(backend, precision)
        if precision == "int8" and not self._prepared.quantised:
            plan.require_calibration()
        return plan

    def _graphs_of(self, plan: BuildPlan) -> Graphs:
        """Return the graphs of a precision, which all backends of a CPU share."""
        precision = plan.precision
        float32 = self._figures.get((plan.backend, "fp32"))
        loads = float32 is not None and float32.problem is None
        if precision == "int8" and not self._prepared.quantised and not loads:
            # A backend that cannot load the model is found out before a calibration.
            graph, encoding = self._prepared.graph, plan.encodings[0]
            with candidate(plan, self._prepared, graph, "fp32", encoding):
                pass
        if precision not in self._graphs:
            if precision == "int8" and not self._prepared.quantised:
                self._progress.note("int8: its ranges, and the layers that must stay in float")
            try:
                found = make_graphs(plan, self._prepared, self._truth, self._progress)
                self._graphs[precision] = found
            except BuildError as error:
                self._graphs[precision] = error
        graphs = self._graphs[precision]
        if isinstance(graphs, BuildError):
            raise graphs
        return graphs

    def _feeds(self, one: Candidate, most: int) -> list[dict[str, Any]]:
        [feed] = one.fused.inputs
        rows = read_rows(one.fused.preprocess, self._plan.check_images, most)
        return [{feed.name: row} for _, row in rows]

    def _time(self, candidates: Sequence[Candidate]) -> None:
        with self._progress.phase("speed"):
            sessions = [one.engine.session for one in candidates]
            feeds = self._feeds(candidates[0], _IMAGES)
            timed = time_sessions(sessions, feeds, self._progress)
        for one, rates in zip(candidates, timed, strict=True):
            latency = self._plan.goal == "latency"
            self._rates[one.choice] = rates.alone if latency else rates.parallel
            alone_ms, images_per_s = 1000 / median(rates.alone), median(rates.parallel)
            self._found(
                one.choice, alone_ms=round(alone_ms, 3), images_per_s=round(images_per_s, 2)
            )
            self._progress.note(
                f"{_name(one.choice)}: {alone_ms:.3g} ms alone, {images_per_s:.4g} images/s in "
                "parallel"
            )

    def _verify(self, candidates: Sequence[Candidate]) -> Iterator[tuple[Choice, EngineCard]]:
        for precision in dict.fromkeys(one.graphs.precision for one in candidates):
            left = [one for one in candidates if one.graphs.precision == precision]
            while left:
                one = self._fastest(left)
                left.remove(one)
                try:
                    card = one.verified(self._prepared, self._truth, self._progress)
                except (Disagreement, BackendError) as error:
                    self._drop(one.choice, error)
                    continue
                accuracy = card.accuracy.get(precision)
                self._found(
                    one.choice,
                    quality=card.agreement and card.agreement.quality,
                    accuracy=accuracy and accuracy.figure,
                    metric=accuracy and accuracy.metric,
                )
                yield one.choice, card
                if card.refused is None:
                    break
                self._drop(one.choice, Disagreement(card.refused))

    def _fastest(self, candidates: Sequence[Candidate]) -> Candidate:
        return candidates[fastest([self._rates[one.choice] for one in candidates])]

    def _reason(self, kept: Candidate, candidates: Sequence[Candidate]) -> str:
        """Compare the candidate that is kept with the fastest other that could have been."""
        left = [o for o in candidates if o is not kept and not self._figures[o.choice].problem]
        if not left:
            return "nothing else can be chosen"
        other = max(left, key=lambda one: median(self._rates[one.choice]))
        pairs = zip(self._rates[kept.choice], self._rates[other.choice], strict=True)
        if (ratio := median(own / its for own, its in pairs)) > 1:
            return f"x{ratio:.2f} the speed of {_name(other.choice)}"
        return f"{_name(other.choice)} is not faster in three rounds of four"

    def _drop(self, choice: Choice, error: FoveaError, folder: Path | None = None) -> None:
        self._errors.append(error)
        reason = " ".join(str(error).split()).replace(f"{folder}/", "")
        if all(one.problem != reason for one in self._figures.values()):
            # A precision that cannot be is so with every backend.
            what = choice[1] if isinstance(error, InvalidOption) else _name(choice)
            self._progress.note(f"{what} is left out: {reason}")
        self._found(choice, problem=reason)

    def _found(self, choice: Choice, **figures: Any) -> None:
        self._figures[choice] = replace(self._figures[choice], **figures)


def _name(choice: Choice) -> str:
    backend, precision = choice
    return f"{backend} in {precision}"
