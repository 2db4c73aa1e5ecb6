"""Makes the fields of a `PreprocessSpec` of what the steps before a network do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fovea_start.triton.findings import Clue, flat

_RESAMPLED = {
    **{"INTER_LINEAR": "linear", "INTER_AREA": "area", "BILINEAR": "antialias"},
    **{"LANCZOS": "lanczos", "ANTIALIAS": "lanczos", "INTERP_LANCZOS3": "lanczos"},
    **{"INTERP_LINEAR": "antialias", "INTERP_TRIANGULAR": "antialias"},
}
_ORDERS = {"COLOR_BGR2RGB": "RGB", "COLOR_RGB2BGR": "BGR", "RGB": "RGB", "BGR": "BGR"}
_OTHER = {"RGB": "BGR", "BGR": "RGB"}
_GREY = ("L", "COLOR_BGR2GRAY", "COLOR_RGB2GRAY", "IMREAD_GRAYSCALE", 0.0)
_DIGITS = 6


@dataclass(slots=True)
class ReadPreprocess:
    """The preprocessing of some steps.

    Attributes:
        fields: for the JSON file of `--preprocess`.
        size: (height, width) to which images are made; None where no constant says it.
        values: the place where the numbers of a pixel are changed first; "" where they are not.
        left: what the fields cannot say, for people.
    """

    fields: dict[str, object] = field(default_factory=dict)
    size: tuple[int, int] | None = None
    values: str = ""
    left: list[str] = field(default_factory=list)
    _order: str = ""
    _shorter: float = 0
    # A level v has become gain * v + shift.
    _gain: list[float] = field(default_factory=lambda: [1.0] * 3)
    _shift: list[float] = field(default_factory=lambda: [0.0] * 3)
    _applied: list[tuple[object, ...]] = field(default_factory=list)

    def add(self, step: Clue) -> None:
        """Take in what the next step does."""
        said, mode = step.values, step.values.get("mode")
        self._colours(step)
        if step.kind == "resize":
            self.fields.setdefault("fit", "stretch")
            by = str(said.get("by") or "INTER_LINEAR")
            self.fields["resample"] = _RESAMPLED.get(by, "antialias")
            if by not in _RESAMPLED:
                near = "Fovea has not, so differences are small: bilinear is the nearest"
                self.left.append(f"{step.where} resamples by {by.lower()}, which {near}")
        if step.kind == "letterbox" or mode == "not_larger":
            self.fields["fit"] = "letterbox"
            if grey := flat(said.get("grey")):
                self.fields["pad"] = int(grey[0])
            if (said.get("y"), said.get("x")) == (0.0, 0.0):
                self.fields["anchor"] = "top-left"
        self._sizes(step)
        self._numbers(step)
        if step.kind in ("processor", "?"):
            where = "its values are in that model's preprocessor_config.json: add them to the JSON"
            why = where if step.kind == "processor" else "Fovea does nothing of the kind"
            self.left.append(f"{step.where} is not understood: {step.code} ({why})")

    def _colours(self, step: Clue) -> None:
        code, said = step.values.get("code"), step.values
        if step.kind == "decode":
            self._order = str(said["order"])
        if code in _GREY:
            self.left.append(f"{step.where} makes images grey, and Fovea sends colour: {step.code}")
        elif said.get("flip") or code in _ORDERS:
            self._gain.reverse()
            self._shift.reverse()
            self._order = _ORDERS.get(str(code)) or _OTHER.get(self._order, "")
        if self._order in _OTHER:
            self.fields["channels"] = self._order

    def _sizes(self, step: Clue) -> None:
        said = step.values
        whole = (*flat(said.get("h")), *flat(said.get("w")))
        sides = flat(said.get("wh"))[::-1] or flat(said.get("hw")) or whole
        shorter = flat(said.get("shorter")) or (sides if len(sides) == 1 else ())
        if step.kind == "resize" and shorter:
            self._shorter = shorter[0]
        elif step.kind == "resize" and said.get("mode") == "not_smaller" and sides:
            self._shorter = min(sides)
        elif sides and min(sides) > 1:
            height, width = (int(side) for side in (sides * 2)[:2])
            if step.kind in ("crop", "normalise") and self._shorter:
                self.fields["fit"] = "center-crop"
                ratio = max(1.0, self._shorter / min(height, width))
                self.fields["crop_ratio"] = round(ratio, _DIGITS)
            self.size = (height, width)

    def _numbers(self, step: Clue) -> None:
        change = [step.values.get(name) for name in ("mean", "std", "times")]
        if change == [None] * 3 or (key := (step.kind, *change)) in self._applied:
            return
        self._applied.append(key)
        self.values = self.values or step.where
        usual = ((0.0,), (1.0,), (1.0,))
        parts = [flat(one) or other for one, other in zip(change, usual, strict=True)]
        mean, std, times = ((part * 3)[:3] for part in parts)
        gains = [t / s if s else 1.0 for s, t in zip(std, times, strict=True)]
        self._gain = [old * g for old, g in zip(self._gain, gains, strict=True)]
        moved = zip(self._shift, mean, gains, strict=True)
        self._shift = [(old - m) * g for old, m, g in moved]

    def finish(self) -> None:
        """Set scale, mean and std, which do the same: (v * scale - mean) / std."""
        scale = 1.0 if self._gain == [1.0] * 3 else 1 / 255
        std = [scale / gain if gain else 1.0 for gain in self._gain]
        mean = [-shift * one for shift, one in zip(self._shift, std, strict=True)]
        numbers = {"mean": mean, "std": std}
        self.fields |= {
            name: [round(n, _DIGITS) + 0.0 for n in each] for name, each in numbers.items()
        }
        self.fields["scale"] = scale


def read_preprocess(steps: Sequence[Clue]) -> ReadPreprocess:
    """Follow the findings of the steps before a network, in their order."""
    read = ReadPreprocess()
    for step in steps:
        read.add(step)
    if read.fields or read.values:
        read.finish()
    return read
