"""Measures the speed of a build's possible engines, and keeps the fastest accepted engine."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from fovea_engines.build.acceptance import measure_engine, rejection
from fovea_engines.build.assemble import HeldEngines, assemble, candidate, warm_up
from fovea_engines.build.graphs import Graphs, fuse, make_graphs
from fovea_engines.build.labelled import LabelledEvaluation
from fovea_engines.build.plan import BuildPlan, Choice
from fovea_engines.build.prepare import PreparedModel
from fovea_engines.device import gpu_here
from fovea_engines.engine import Engine
from fovea_engines.evaluation.samples import sample_images
from fovea_engines.evaluation.speed import Rates, fastest, is_faster, time_engines
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

# Number of images that a measurement of speed uses in turn.
_IMAGES = 8
# A hint recommends the goal "latency" if another engine is faster for single images by this factor.
_CLEARLY = 1.2
# Name of the directory for the files of all candidates, until one candidate is chosen.
_FOLDER = "candidates"


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """A compiled engine of one choice (backend and precision).

    Attributes:
        plan: build plan with only this choice.
        graphs: graphs of the model in the precision of the choice.
        fused: model that was compiled, with fused preprocessing and NMS if the plan requires them.
        card: card of the engine.
        folder: directory with the engine's files.
        held: cache that opens the engine when it is needed.
    """

    plan: BuildPlan
    graphs: Graphs
    fused: PreparedModel
    card: EngineCard
    folder: Path
    held: HeldEngines

    @property
    def engine(self) -> Engine:
        """Return the open engine.

        It stays open until the cache needs its memory for other engines.
        """
        return self.held.engine(self.folder, self.card)

    @property
    def choice(self) -> Choice:
        """Return the name of the backend, and the precision."""
        return self.plan.backend, self.graphs.precision

    def verify(
        self, prepared: PreparedModel, truth: LabelledEvaluation | None, progress: Progress
    ) -> EngineCard:
        """Measure the engine, and return its card with all figures.

        If the engine is rejected, `refused` of the card has the reason.

        Raises:
            Disagreement: the results of an FP32 engine differ from its source's, fused
                preprocessing or NMS changes the results, or float16 overflows.
        """
        card = measure_engine(
            self.plan, prepared, self.graphs, self.fused, self.engine, truth, progress
        )
        return replace(card, refused=rejection(card, self.plan.max_drop))


@contextmanager
def open_chosen(
    plan: BuildPlan,
    prepared: PreparedModel,
    truth: LabelledEvaluation | None,
    folder: Path,
    progress: Progress,
) -> Iterator[tuple[Candidate, EngineCard]]:
    """Build the engine of a plan into an empty directory, and yield it with its card.

    If the plan has several choices, the engine is the fastest accepted one. If no engine is
    accepted, `refused` of the yielded card has the reason. If no engine could be measured, the
    first error is raised.
    """
    if not plan.choices:
        graphs = make_graphs(plan, prepared, truth, progress)
        with HeldEngines() as held:
            one = _compile(plan, prepared, graphs, folder, held, progress)
            yield one, one.verify(prepared, truth, progress)
        return
    if (gpu := gpu_here()) is not None:
        progress.note(f"auto is for CPUs: for the {gpu} give --backend tensorrt or tensorrt-rtx")
    if prepared.quantised:  # the model is built as INT8 in any case
        names: dict[Precision, Precision] = {"fp32": "int8", "bf16": "int8"}
        choices = ((backend, names.get(one, one)) for backend, one in plan.choices)
        plan = replace(plan, choices=tuple(dict.fromkeys(choices)))
    with HeldEngines() as held:
        one, card = _Chooser(plan, prepared, truth, held, progress).choose(folder)
        held.engine(one.folder, one.card)  # the engine must be open before its files are moved
        for file in one.folder.iterdir():
            file.rename(folder / file.name)
        shutil.rmtree(folder / _FOLDER)
        held.move(one.folder, folder)
        yield replace(one, folder=folder), card


def _compile(
    plan: BuildPlan,
    prepared: PreparedModel,
    graphs: Graphs,
    folder: Path,
    held: HeldEngines,
    progress: Progress,
    phase: str = "compile",
) -> Candidate:
    fused = fuse(plan, prepared, graphs.served, progress)
    held.make_room()
    with progress.phase(phase):
        engine = assemble(plan, fused, fused.graph, graphs.precision, folder, progress)
    held.add(folder, engine)
    return Candidate(plan, graphs, fused, engine.card, folder, held)


class _Chooser:
    """Compiles a plan's choices, measures their speed, and verifies the fastest per precision."""

    def __init__(
        self,
        plan: BuildPlan,
        prepared: PreparedModel,
        truth: LabelledEvaluation | None,
        held: HeldEngines,
        progress: Progress,
    ) -> None:
        self._plan = plan
        self._prepared = prepared
        self._truth = truth
        self._held = held
        self._progress = progress
        self._figures = {one: CandidateFigures(*one) for one in plan.choices}
        self._graphs: dict[Precision, Graphs | BuildError] = {}
        self._rates: dict[Choice, Rates] = {}
        self._errors: list[FoveaError] = []

    def choose(self, folder: Path) -> tuple[Candidate, EngineCard]:
        """Return the fastest accepted engine, and its card.

        If no engine is accepted, return a rejected engine. If no engine could be measured, raise
        the first error.
        """
        candidates = list(self._compile_each(folder))
        if candidates:
            self._time(candidates)
        cards = dict(self._verify(candidates))
        if not cards:
            raise self._errors[0]
        good = [one for one in candidates if (c := cards.get(one.choice)) and not c.refused]
        kept = self._fastest(good) if good else next(o for o in candidates if o.choice in cards)
        if good:
            self._record(kept.choice, kept=True)
            why = self._reason(kept, candidates)
            self._progress.note(f"chose {_name(kept.choice)} for {self._plan.goal}: {why}")
            if hint := self._hint(kept, candidates):
                self._progress.note(hint)
        figures = tuple(self._figures.values())
        return kept, replace(cards[kept.choice], candidates=figures, goal=self._plan.goal)

    def _compile_each(self, folder: Path) -> Iterator[Candidate]:
        for choice in self._plan.choices:
            try:
                plan = self._make_plan(*choice)
            except InvalidOption as error:
                self._drop(choice, error)
                continue
            own = folder / _FOLDER / "-".join(choice)
            own.mkdir(parents=True)
            try:
                graphs = self._find_graphs(plan)
                phase = f"compile {_name(choice)}"
                shared = self._held, self._progress
                one = _compile(plan, self._prepared, graphs, own, *shared, phase)
                warm_up(one.engine)
            except (BuildError, BackendError) as error:
                self._drop(choice, error, own)
            else:
                yield one

    def _make_plan(self, backend: str, precision: Precision) -> BuildPlan:
        """Return the build plan for one choice.

        Raises:
            InvalidOption: this machine does not support the choice, or an INT8 choice has no
                calibration.
        """
        plan = self._plan.choice(backend, precision)
        if precision == "int8" and not self._prepared.quantised:
            plan.require_calibration()
        return plan

    def _find_graphs(self, plan: BuildPlan) -> Graphs:
        """Return the graphs of a precision.

        They are created once, and all CPU backends use them.
        """
        precision = plan.precision
        float32 = self._figures.get((plan.backend, "fp32"))
        loads = float32 is not None and float32.problem is None
        if precision == "int8" and not self._prepared.quantised and not loads:
            # Load the model in float32 first. If the backend cannot load the model, this fails
            # before the calibration, which takes minutes.
            graph, encoding = self._prepared.graph, plan.encodings[0]
            with candidate(plan, self._prepared, graph, "fp32", encoding):
                pass
        if precision not in self._graphs:
            if precision == "int8" and not self._prepared.quantised:
                self._progress.note("int8: ranges, and layers that must stay in float")
            try:
                found = make_graphs(plan, self._prepared, self._truth, self._progress)
                self._graphs[precision] = found
            except BuildError as error:
                self._graphs[precision] = error
        graphs = self._graphs[precision]
        if isinstance(graphs, BuildError):
            raise graphs
        return graphs

    def _time(self, candidates: Sequence[Candidate]) -> None:
        with self._progress.phase("speed"):
            engines = [lambda one=one: one.engine for one in candidates]
            images = [pixels for _, pixels in sample_images(self._plan.check_images, _IMAGES)]
            fit = self._held.fit([one.folder for one in candidates])
            timed = time_engines(engines, images, self._progress, together=fit)
        for one, rates in zip(candidates, timed, strict=True):
            self._rates[one.choice] = rates
            alone_ms, images_per_s = 1000 / median(rates.alone), median(rates.parallel)
            own = {"alone_ms": round(alone_ms, 3), "images_per_s": round(images_per_s, 2)}
            self._record(one.choice, **own)
            self._progress.note(
                f"{_name(one.choice)}: {alone_ms:.3g} ms for one image, {images_per_s:.4g} "
                "images/s in parallel"
            )

    def _verify(self, candidates: Sequence[Candidate]) -> Iterator[tuple[Choice, EngineCard]]:
        for precision in dict.fromkeys(one.graphs.precision for one in candidates):
            left = [one for one in candidates if one.graphs.precision == precision]
            while left:
                one = self._fastest(left)
                left.remove(one)
                try:
                    card = one.verify(self._prepared, self._truth, self._progress)
                except (Disagreement, BackendError) as error:
                    self._drop(one.choice, error)
                    continue
                accuracy = card.accuracy.get(precision)
                self._record(
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
        return candidates[fastest(*zip(*map(self._order_by_goal, candidates), strict=True))]

    def _order_by_goal(self, one: Candidate) -> tuple[Sequence[float], Sequence[float]]:
        """Return the rates that the goal compares first, and the rates that decide in a tie.

        For the goal "latency", the first ones are the rates of single calls, and the others are the
        rates of parallel calls. For "throughput", the order is reversed.
        """
        rates = self._rates[one.choice]
        both = rates.alone, rates.parallel
        return both if self._plan.goal == "latency" else both[::-1]

    def _reason(self, kept: Candidate, candidates: Sequence[Candidate]) -> str:
        """Return the reason for the choice: a comparison with the next best candidate."""
        left = [o for o in candidates if o is not kept and not self._figures[o.choice].problem]
        if not left:
            return "there is no alternative"
        other = max(left, key=lambda one: median(self._order_by_goal(one)[0]))
        (own, own_tie), (its, its_tie) = self._order_by_goal(kept), self._order_by_goal(other)
        name = _name(other.choice)
        if is_faster(own, its):
            return f"{_ratio(own, its):.2f} times as fast as {name}"
        if is_faster(own_tie, its_tie) and not is_faster(its, own):
            where = "under load" if self._plan.goal == "latency" else "with a single image"
            faster = f"{_ratio(own_tie, its_tie):.2f} times as fast {where}"
            return f"within noise as fast as {name}, and {faster}"
        if is_faster(its, own):
            return f"{name} was faster, but not the fastest engine in {other.choice[1]}"
        return f"{name} was faster in fewer than 3 of 4 rounds"

    def _hint(self, kept: Candidate, candidates: Sequence[Candidate]) -> str:
        """Return a hint for the user if another candidate is clearly faster for single images.

        Otherwise return "".
        """
        own = self._rates[kept.choice].alone
        left = [one for one in candidates if not self._figures[one.choice].problem]
        other = max(left, key=lambda one: median(self._rates[one.choice].alone))
        its = self._rates[other.choice].alone
        clear = is_faster(its, own) and _ratio(its, own) >= _CLEARLY
        if self._plan.goal == "latency" or not clear:
            return ""
        return (
            f"{_name(other.choice)} is {_ratio(its, own):.2f} times as fast for single images: if "
            "your images come one at a time, build with --hint latency"
        )

    def _drop(self, choice: Choice, error: FoveaError, folder: Path | None = None) -> None:
        self._errors.append(error)
        reason = " ".join(str(error).split()).replace(f"{folder}/", "")
        if all(one.problem != reason for one in self._figures.values()):
            # An InvalidOption is about the precision, so it holds for every backend.
            what = choice[1] if isinstance(error, InvalidOption) else _name(choice)
            self._progress.note(f"{what} is left out: {reason}")
        self._record(choice, problem=reason)

    def _record(self, choice: Choice, **figures: Any) -> None:
        self._figures[choice] = replace(self._figures[choice], **figures)


def _ratio(own: Sequence[float], its: Sequence[float]) -> float:
    return median(one / other for one, other in zip(own, its, strict=True))


def _name(choice: Choice) -> str:
    backend, precision = choice
    return f"{backend} in {precision}"
