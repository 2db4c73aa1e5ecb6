"""The report of the drift of a model."""

from __future__ import annotations

from itertools import pairwise

from pydantic import BaseModel, ConfigDict, Field
from pydantic.config import JsonDict

from fovea_engines.repository.card import Distribution
from fovea_engines.results.class_names import class_name
from fovea_server.models.model import ServedModel
from fovea_server.monitoring.drift.window import IMAGES, LiveWindow

_BIN: JsonDict = {"bin": "person", "expected": 0.54, "live": 0.28}
_QUANTITY: JsonDict = {"quantity": "classes", "distance": 0.31, "images": 412, "bins": [_BIN]}
_REPORT: JsonDict = {
    **{"model": "yolov8n", "version": "1", "window": IMAGES, "left_out": 0},
    **{"images": 256, "images_from": "val2017", "quantities": [_QUANTITY]},
}


class DriftBin(BaseModel):
    """A bin of a quantity, and the share of the images in it."""

    bin: str
    expected: float = Field(description="share of the images of the build")
    live: float = Field(description="share of the live images")


class DriftQuantity(BaseModel):
    """One quantity of the live images, and of those of the build."""

    quantity: str = Field(description="scores, classes, sizes, objects or brightness")
    distance: float | None = Field(
        description="population stability index, less what chance explains: from .25 on the images "
        "are others; null with fewer than 20 images"
    )
    images: int = Field(description="live images that have it")
    bins: list[DriftBin]


class DriftReport(BaseModel):
    """The last images of a model beside those of its build."""

    model_config = ConfigDict(json_schema_extra={"examples": [_REPORT]})

    model: str
    version: str
    window: int = Field(description="most live images that are compared, the last ones")
    left_out: int = Field(description="images with options by which less, or other, is found")
    images: int = Field(description="number of the images of the build")
    images_from: str = Field(description="name of their folder")
    quantities: list[DriftQuantity]


def drift_report(model: ServedModel, window: LiveWindow) -> DriftReport:
    """Compute the report; it takes milliseconds."""
    labels = None if model.engine is None else model.engine.labels
    live = window.count()
    baseline = window.baseline
    quantities = [
        DriftQuantity(
            quantity=name,
            distance=None if (far := each.distance(live[name])) is None else round(far, 4),
            images=round(float(live[name].sum())),
            bins=[
                DriftBin(bin=text, expected=round(want, 4), live=round(have, 4))
                for text, want, have in zip(
                    _bin_names(name, each, labels),
                    (count / sum(each.counts) for count in each.counts),
                    (live[name] / max(1.0, live[name].sum())).tolist(),
                    strict=True,
                )
                if want or have
            ],
        )
        for name, each in baseline.quantities.items()
    ]
    return DriftReport(
        model=model.name,
        version=str(model.version),
        window=IMAGES,
        left_out=window.left_out,
        images=baseline.images,
        images_from=baseline.images_from,
        quantities=quantities,
    )


def _bin_names(quantity: str, of: Distribution, labels: tuple[str, ...] | None) -> list[str]:
    if of.exact:
        return [*(class_name(labels, int(each)) for each in of.edges), "others"]
    if quantity == "objects":
        edges = [int(each) for each in of.edges[:-1]]
        last = int(of.edges[-1])
        pairs = pairwise([*edges, last + 1])
        between = [str(a) if a + 1 == b else f"{a} to {b - 1}" for a, b in pairs]
        under = "none" if edges[0] <= 1 else f"under {edges[0]}"
        return [under, *between, f"over {last}"]
    edges_ = [f"{each:.3g}" for each in of.edges]
    between = [f"{a} to {b}" for a, b in pairwise(edges_)]
    return [f"under {edges_[0]}", *between, f"over {edges_[-1]}"]
