"""From a float model to the INT8 graphs of a build."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from fovea_engines.agreement.measure import measure
from fovea_engines.agreement.samples import answers, read_rows, read_samples
from fovea_engines.agreement.sensitivity import Sensitivity, keep_until, rank
from fovea_engines.assemble import trial
from fovea_engines.calibration.calibrate import calibrate
from fovea_engines.calibration.pictures import Pictures
from fovea_engines.calibration.ranges import RANGES_FILE, Origin, Ranges
from fovea_engines.figures import Calibration
from fovea_engines.plan import AUTO, BuildPlan
from fovea_engines.precision.blocks import blocks, select
from fovea_engines.precision.encoding import Encoding
from fovea_engines.precision.qdq import quantisable, quantise
from fovea_engines.prepare import PreparedModel
from fovea_engines.progress import Progress
from fovea_engines.repository import ModelRepository
from fovea_preprocess.errors import Disagreement, InvalidOption, NotFound, UnsupportedModel

# Agreement that is good enough: no block need stay in float for more.
BUDGET = 0.9
# How much more of the input than calibration has seen may be clipped.
_CLIPPED = 1.5
# Pictures a block is judged on: enough for a hundred detections, few enough for a second each.
SWEEP_IMAGES = 24


@dataclass(frozen=True, slots=True, eq=False)
class Quantisation:
    """How a model is brought to INT8.

    Attributes:
        ranges: of the tensors that its layers take.
        reused: they come from an earlier build.
        layers: names of the layers that INT8 can touch.
        kept_float: those of them that are left in float.
        ranking: what the search for them found, most gain first; empty without a search.
    """

    ranges: Ranges
    reused: bool
    layers: tuple[str, ...]
    kept_float: tuple[str, ...]
    ranking: tuple[Sensitivity, ...]

    @property
    def card_entry(self) -> Calibration:
        """What the card says of it."""
        origin = self.ranges.origin
        return Calibration(
            method=origin.method,
            images=self.ranges.count,
            images_sha256=origin.images,
            preprocess_sha256=origin.preprocess,
            layers=len(self.layers) - len(self.kept_float),
            kept_float=self.kept_float,
            reused=self.reused,
        )


def plan_quantisation(plan: BuildPlan, prepared: PreparedModel, progress: Progress) -> Quantisation:
    """Measure ranges, and choose the layers that stay float.

    Raises:
        InvalidOption: no calibration pictures, or not such; ranges that were measured from
            something else; a pattern that picks nothing.
        Disagreement: calibration has seen much less of the input than there is.
        UnsupportedModel: there is nothing to quantise.
    """
    layers = quantisable(prepared.graph)
    if not layers:
        raise UnsupportedModel(
            "no layer of the model gains from INT8 (it has no convolutions with constant float32 "
            "weights, but for its head): build with --precision fp16"
        )
    with progress.phase("calibrate"):
        ranges, reused = find_ranges(plan, prepared, progress)
        _check_clipping(ranges, plan, prepared)
    if plan.keep_float != (AUTO,):
        return Quantisation(ranges, reused, layers, select(plan.keep_float, layers), ())
    with progress.phase("sensitivity"):
        trials = Trials(plan, prepared, ranges)
        base = trials.quality(())
        progress.note(f"agreement {base:.3f} with every block in INT8")
        if base >= BUDGET:
            return Quantisation(ranges, reused, layers, (), ())
        ranking = rank(blocks(layers), base, trials.quality, progress)
        kept, reached = keep_until(BUDGET, base, ranking, trials.quality)
    for one in kept:
        progress.note(f"{one.block} stays in float: {one.gain:+.3f} by itself")
    progress.note(f"agreement {reached:.3f} with {len(kept)} of {len(ranking)} blocks in float")
    names = tuple(layer for one in kept for layer in one.layers)
    return Quantisation(ranges, reused, layers, names, tuple(ranking))


class Trials:
    """INT8 networks of one model that are built, judged and thrown away.

    They are judged on the backend that will serve: a correct graph is not enough.
    """

    def __init__(self, plan: BuildPlan, prepared: PreparedModel, ranges: Ranges) -> None:
        self._plan = plan
        self._prepared = prepared
        self._ranges = ranges
        outputs = [output.name for output in prepared.outputs]
        self._samples = list(
            read_samples(plan.source, prepared.preprocess, outputs, plan.pictures, SWEEP_IMAGES)
        )

    def quality(self, keep_float: Iterable[str]) -> float:
        """Agreement (0 to 1) of the network in which layers of these names stay float."""
        graph = quantise(self._prepared.graph, self._ranges, Encoding.UNSIGNED, tuple(keep_float))
        with trial(self._plan, self._prepared, graph, "int8") as engine:
            return measure(engine.head, answers(engine, self._samples)).quality


def find_ranges(
    plan: BuildPlan, prepared: PreparedModel, progress: Progress
) -> tuple[Ranges, bool]:
    """The ranges of a plan, and whether they were measured before.

    Measured ranges are used again only when model, preprocessing, pictures, their order and the
    method are all the same.

    Raises:
        InvalidOption: there are no pictures; or the ranges that were given are of something else.
    """
    if plan.calibration is None:
        raise InvalidOption(
            "INT8 needs --calibration DIR: a hundred pictures or more, as the camera takes them, "
            "without labels"
        )
    spec = prepared.preprocess
    if plan.calibration.is_file():
        given = Ranges.read(plan.calibration)
        wanted = Origin(prepared.sha256, spec.digest, given.origin.images, plan.calibrator)
        if difference := given.origin.difference(wanted):
            raise InvalidOption(
                f"{plan.calibration} was measured with {difference}: give --calibration the "
                "folder of pictures, to measure anew"
            )
        return given, True
    pictures = Pictures.of(plan.calibration, spec)
    origin = Origin(prepared.sha256, spec.digest, pictures.digest, plan.calibrator)
    repository = ModelRepository(plan.repository)
    for version in reversed(repository.versions(plan.name)):
        with suppress(NotFound, InvalidOption):
            known = Ranges.read(repository.folder(plan.name, version) / RANGES_FILE)
            if known.origin == origin:
                progress.note(f"calibration of version {version} is used again: nothing differs")
                return known, True
    return calibrate(prepared.graph, pictures, origin, progress), False


def _check_clipping(ranges: Ranges, plan: BuildPlan, prepared: PreparedModel) -> None:
    """Refuse ranges of an input that serving goes far beyond."""
    rows = read_rows(prepared.preprocess, plan.images, SWEEP_IMAGES)
    reached = max(float(np.abs(row).max()) for _, row in rows)
    seen = max(map(abs, ranges.tensors.get(prepared.inputs[0].name, (reached, reached))))
    if reached > _CLIPPED * seen:
        raise Disagreement(
            f"calibration saw values up to {seen:.3g} at the model's input, and pictures that are "
            f"served hold {reached:.3g}: it was measured on dark pictures, or with another "
            "preprocessing; give --calibration pictures as the camera will take them, and the "
            "same in --images if they are that dark"
        )
