"""Decides where two networks diverge."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Literal

from fovea_engines.inspect.figures import Figures, SmallSlices
from fovea_engines.inspect.match import Pair, paired_sources
from fovea_engines.inspect.network import Layer
from fovea_engines.repository.card import Precision

State = Literal["agrees", "diverges", "other picks", "not judged"]

# SNR in decibel below which a tensor diverges from FP32. Weights scaled by 1.5 give about 6 dB.
# Correct models have lowest SNRs against their FP32 file of 18 (u2netp) to 65 dB (yolov5n) in FP16,
# and 15 dB (yolov5n) in INT8.
_SNR_DB: Mapping[Precision, float] = {"fp32": 60.0, "fp16": 15.0, "bf16": 10.0, "int8": 10.0}
# SNR in decibel below which models in the same precision diverge. They round at the same places, so
# their SNR is higher: 24 dB for INT8 on two runtimes (yolov5n), and 13 dB if one of them computes
# incorrectly.
_BOTH_DB: Mapping[Precision, float] = {"fp32": 60.0, "fp16": 20.0, "bf16": 18.0, "int8": 18.0}

# Smallest fall of the SNR within a layer, in decibel, that counts as a new error.
_JUMP_DB = 10.0
# Margin in decibel. If the readers of a pair by order agree better than the pair by this margin,
# the pair was matched wrongly.
_HEALED_DB = 20.0


@dataclass(frozen=True, slots=True)
class Comparison:
    """One pair of layers and the result of its comparison.

    Attributes:
        a: layer of the first network.
        b: layer of the second network.
        by: how the layers were paired.
        figures: measured difference; None if the shapes differ.
        inputs_snr_db: lowest SNR of the layers from which it is computed, decibel; inf if there are
            none.
        state: "agrees", "diverges", "other picks" or "not judged". "other picks" are integers or
            booleans with the same computation that differ because rounding reordered their inputs,
            e.g. two close scores. "not judged" means: the pair differs after such picks, or it was
            paired by order and all its readers agree, or values are NaN in both.
    """

    a: Layer
    b: Layer
    by: Literal["name", "order"]
    figures: Figures | None
    inputs_snr_db: float
    state: State

    @property
    def snr_db(self) -> float:
        """Return the lowest SNR of the tensor and its small slices, in decibel.

        The SNR is -inf if the shapes differ.
        """
        if self.figures is None:
            return -inf
        return self.figures.snr_db if self.hidden is None else self.hidden.snr_db

    @property
    def hidden(self) -> SmallSlices | None:
        """Return the small slices if they differ more than the whole tensor, otherwise None."""
        small = None if self.figures is None else self.figures.small
        if self.figures is None or small is None or small.snr_db >= self.figures.snr_db:
            return None
        return small

    @property
    def is_jump(self) -> bool:
        """Return True if the error arises in this layer, instead of growing over earlier layers."""
        if self.figures is None or self.figures.broken:
            return True
        return self.inputs_snr_db - self.snr_db >= _JUMP_DB

    @property
    def noise_added(self) -> float:
        """Return the noise power that this layer adds, divided by the signal power."""
        return float(10 ** (-self.snr_db / 10) - 10 ** (-self.inputs_snr_db / 10))


def default_threshold(a: Precision, b: Precision) -> float:
    """Return the SNR in decibel below which tensors of models in these precisions diverge."""
    return _BOTH_DB[a] if a == b else min(_SNR_DB[a], _SNR_DB[b])


def judge(
    layers: Sequence[Layer],
    others: Sequence[Layer],
    measured: Mapping[Pair, Figures | None],
    threshold: float,
    computed_otherwise: Callable[[Comparison], bool],
) -> list[Comparison]:
    """Compare every pair, in the order of the first network.

    Args:
        layers: layers of the first network.
        others: layers of the second network.
        measured: pair -> its figures; None if the shapes differ.
        threshold: SNR in decibel below which a tensor diverges.
        computed_otherwise: returns True if operator, attributes or constants of a pair differ.
    """
    sources = paired_sources(layers, {pair.a for pair in measured})
    judged: dict[int, Comparison] = {}
    behind: set[int] = set()  # picks that differ, and layers computed from them
    for pair, figures in measured.items():
        above = [judged[position] for position in sorted(sources[pair.a])]
        one = Comparison(
            layers[pair.a],
            others[pair.b],
            pair.by,
            figures,
            min((source.snr_db for source in above), default=inf),
            "agrees",
        )
        behind_picks = not behind.isdisjoint(sources[pair.a])
        if _differs(one, threshold):
            picks = not behind_picks and _rounding_picks(one, above) and not computed_otherwise(one)
            state: State = "not judged" if behind_picks else "other picks" if picks else "diverges"
            one = replace(one, state=state)
        elif figures is not None and figures.unknown:
            one = replace(one, state="not judged")
        if behind_picks or one.state == "other picks":
            behind.add(pair.a)
        judged[pair.a] = one
    return [_doubt(position, one, judged, sources) for position, one in judged.items()]


def _differs(one: Comparison, threshold: float) -> bool:
    if one.figures is None or one.figures.broken:
        return True
    return one.snr_db < (threshold if one.a.is_float else inf)


def _rounding_picks(one: Comparison, above: Sequence[Comparison]) -> bool:
    """Return True if rounding of the inputs may explain a difference."""
    if one.a.is_float or any(source.state == "diverges" for source in above):
        return False
    return not above or one.inputs_snr_db < inf


def _doubt(
    position: int,
    one: Comparison,
    judged: Mapping[int, Comparison],
    sources: Sequence[set[int]],
) -> Comparison:
    """Return the pair; as "not judged" if it was paired by order and its readers agree."""
    if one.state != "diverges" or one.by == "name" or one.a.is_output:
        return one
    readers = [other for reader, other in judged.items() if position in sources[reader]]
    healed = one.snr_db + _HEALED_DB
    if readers and all(r.state == "agrees" and r.snr_db >= healed for r in readers):
        return replace(one, state="not judged")
    return one
