"""Runs two models side by side and compares them layer by layer."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from fovea_engines.evaluation.samples import image_files
from fovea_engines.inspect.causes import find_causes
from fovea_engines.inspect.match import match
from fovea_engines.inspect.measured import Measured
from fovea_engines.inspect.models import find_models, make_feeds
from fovea_engines.inspect.network import INPUT, Layer
from fovea_engines.inspect.verdict import Comparison, default_threshold
from fovea_engines.progress import Progress
from fovea_engines.repository.card import Precision
from fovea_preprocess.errors import InvalidOption


@dataclass(frozen=True, slots=True)
class Diff:
    """Differences between two models.

    Attributes:
        precision_a: coarsest arithmetic in the first; `precision_b` in the second.
        images: names of the inputs of both.
        threshold_db: SNR under which a tensor diverges.
        layers: every pair, in the first network's order.
        unmatched_a: layers of the first without a counterpart; `unmatched_b` of the second.
        first: the first layer that diverges; None when none does.
        causes: differences in its computation; none where the error only grew gradually.
    """

    a: Path
    b: Path
    precision_a: Precision
    precision_b: Precision
    images: tuple[str, ...]
    threshold_db: float
    layers: tuple[Comparison, ...]
    unmatched_a: tuple[Layer, ...]
    unmatched_b: tuple[Layer, ...]
    first: Comparison | None
    causes: tuple[str, ...]

    @property
    def agrees(self) -> bool:
        """Return True if nothing diverges and every output of the first model was judged."""
        return self.first is None and not self.undecided

    @property
    def undecided(self) -> tuple[Layer, ...]:
        """Return outputs of the first model that have no counterpart or were not judged."""
        unjudged = (one.a for one in self.layers if one.state == "not judged")
        return tuple(x for x in (*self.unmatched_a, *unjudged) if x.is_output)


def diff(
    path_a: Path,
    path_b: Path,
    images: Path | None = None,
    threshold_db: float | None = None,
    progress: Progress | None = None,
    head: str | None = None,
) -> Diff:
    """Compare two models of the same network, each an .onnx file or the folder of an engine.

    The first is the reference. Of a folder of images at most 4 are used; None takes those that ship
    with Fovea. A tensor whose SNR is under `threshold_db` diverges; None derives it from the
    precisions of the models. `head` is the family of files, where it is not recognised.

    Raises:
        NotFound: a model is missing.
        InvalidModel: a model cannot be read.
        UnsupportedModel: a model cannot be run.
        InvalidOption: the models take different inputs, no layers match, there is no image, or the
            threshold is not a positive number.
    """
    if threshold_db is not None and not (isfinite(threshold_db) and threshold_db > 0):
        raise InvalidOption(
            f"an SNR of {threshold_db:g} dB is no threshold: give a number over 0, such as 60 for "
            "two FP32 models"
        )
    if images is not None:
        image_files(images, 1)
    progress = progress or Progress()
    with progress.phase("load"):
        model_a, model_b = find_models(path_a, path_b, head)
        feeds = make_feeds(model_a, model_b, images)
    with progress.phase("match"):
        a, b = model_a.open(feeds.a[0]), model_b.open(feeds.b[0])
        pairs = match(a.layers, b.layers)
    if all(a.layers[pair.a].op == INPUT for pair in pairs):
        raise InvalidOption(
            f"no layer of {path_a} is like one of {path_b}, by name or by operator and shape: "
            "give two models of the same network"
        )
    if threshold_db is None:
        threshold_db = default_threshold(a.precision, b.precision)
    layers = Measured(a, b, pairs, feeds, threshold_db, progress).judged()
    first = next((one for one in layers if one.state == "diverges"), None)
    causes: tuple[str, ...] = ()
    if first is not None and first.is_jump:
        causes = find_causes(a, b, first, {one.a.name: one.b.name for one in layers})
    paired_a, paired_b = {pair.a for pair in pairs}, {pair.b for pair in pairs}
    return Diff(
        a=model_a.path,
        b=model_b.path,
        precision_a=a.precision,
        precision_b=b.precision,
        images=feeds.names,
        threshold_db=threshold_db,
        layers=tuple(layers),
        unmatched_a=tuple(x for i, x in enumerate(a.layers) if i not in paired_a),
        unmatched_b=tuple(x for i, x in enumerate(b.layers) if i not in paired_b),
        first=first,
        causes=causes,
    )
