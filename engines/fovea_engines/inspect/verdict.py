"""Decides at which layers two models diverge."""

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

# Precision -> SNR in decibel below which a tensor diverges from the tensor of an FP32 model. In
# correct models, the lowest SNR of a tensor is 18 dB (u2netp) to 65 dB (yolov5n) for FP16, and 15
# dB (yolov5n) for INT8. An error such as weights that are scaled by 1.5 gives about 6 dB.
_SNR_DB: Mapping[Precision, float] = {"fp32": 60.0, "fp16": 15.0, "bf16": 10.0, "int8": 10.0}
# Precision -> SNR in decibel below which the tensors of two models in this precision diverge. Both
# models round at the same places, so their SNR is higher. For example, yolov5n in INT8 on two
# runtimes has 24 dB, and 13 dB if one runtime computes incorrectly.
_BOTH_DB: Mapping[Precision, float] = {"fp32": 60.0, "fp16": 20.0, "bf16": 18.0, "int8": 18.0}

# Smallest decrease of the SNR within a layer in decibel that counts as an error of this layer.
_JUMP_DB = 10.0
# Margin in decibel. Layers that were paired by order, and not by name, were probably paired
# incorrectly if the SNR of all layers that read them is higher than their own SNR by this margin.
_HEALED_DB = 20.0


@dataclass(frozen=True, slots=True)
class Comparison:
    """A pair of layers, and the result of its comparison.

    Attributes:
        a: layer of the first model.
        b: layer of the second model.
        by: method that paired the layers.
        figures: measured difference; None if the shapes of the layers differ.
        inputs_snr_db: lowest SNR in decibel of the paired layers from which the pair is computed;
            inf if there are no such layers.
        state: "agrees", "diverges", "other picks" or "not judged". "other picks" means that
            integers or booleans differ because rounding changed the order of their inputs, e.g. of
            two close scores. "not judged" means that the pair depends on "other picks", or that it
            was probably matched incorrectly, or that values are NaN in both models.
    """

    a: Layer
    b: Layer
    by: Literal["name", "order"]
    figures: Figures | None
    inputs_snr_db: float
    state: State

    @property
    def snr_db(self) -> float:
        """Return the SNR of the tensor or of its small slices, whichever is lower, in decibel.

        The SNR is -inf if the shapes differ.
        """
        if self.figures is None:
            return -inf
        return self.figures.snr_db if self.hidden is None else self.hidden.snr_db

    @property
    def hidden(self) -> SmallSlices | None:
        """Return the small slices if their SNR is lower than the tensor's SNR; otherwise None."""
        small = None if self.figures is None else self.figures.small
        if self.figures is None or small is None or small.snr_db >= self.figures.snr_db:
            return None
        return small

    @property
    def is_jump(self) -> bool:
        """Return whether this layer causes the error, and not an error of its inputs that grew."""
        if self.figures is None or self.figures.broken:
            return True
        return self.inputs_snr_db - self.snr_db >= _JUMP_DB

    @property
    def noise_added(self) -> float:
        """Return the noise power that this layer adds, divided by the signal power."""
        return float(10 ** (-self.snr_db / 10) - 10 ** (-self.inputs_snr_db / 10))


def default_threshold(a: Precision, b: Precision) -> float:
    """Return the SNR in decibel below which tensors diverge, for models in these precisions."""
    return _BOTH_DB[a] if a == b else min(_SNR_DB[a], _SNR_DB[b])


def judge(
    layers: Sequence[Layer],
    others: Sequence[Layer],
    measured: Mapping[Pair, Figures | None],
    threshold: float,
    computed_otherwise: Callable[[Comparison], bool],
) -> list[Comparison]:
    """Decide the state of each pair, and return the results in the order of the first model.

    Args:
        layers: layers of the first model.
        others: layers of the second model.
        measured: pair -> its measured difference; None if the shapes differ.
        threshold: SNR in decibel below which a tensor diverges.
        computed_otherwise: function that returns True if the operator, attributes or constants of a
            pair differ.
    """
    sources = paired_sources(layers, {pair.a for pair in measured})
    judged: dict[int, Comparison] = {}
    behind: set[int] = set()  # layers in the state "other picks", and layers that depend on them
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
    """Return whether rounding of the inputs can explain the difference of a pair."""
    if one.a.is_float or any(source.state == "diverges" for source in above):
        return False
    return not above or one.inputs_snr_db < inf


def _doubt(
    position: int,
    one: Comparison,
    judged: Mapping[int, Comparison],
    sources: Sequence[set[int]],
) -> Comparison:
    """Return the pair, in the state "not judged" if it was probably matched incorrectly.

    This is assumed if the layers were paired by order, and not by name, and all layers that read
    them agree much better.
    """
    if one.state != "diverges" or one.by == "name" or one.a.is_output:
        return one
    readers = [other for reader, other in judged.items() if position in sources[reader]]
    healed = one.snr_db + _HEALED_DB
    if readers and all(r.state == "agrees" and r.snr_db >= healed for r in readers):
        return replace(one, state="not judged")
    return one
