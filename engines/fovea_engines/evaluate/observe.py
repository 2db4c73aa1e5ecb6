"""Runs a model on sample images, so that its head is recognised by what it computes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fovea_engines.detect.heads.preprocess import default_preprocess
from fovea_engines.detect.heads.recognise import Observe, Recognition, recognise
from fovea_engines.evaluate.reference import Outputs, ReferenceSession
from fovea_engines.evaluate.samples import read_rows
from fovea_engines.graph.normalise import pin_inputs
from fovea_engines.graph.tensors import graph_inputs, graph_outputs, metadata_of
from fovea_preprocess.errors import InvalidOption, UnsupportedModel
from fovea_preprocess.spec import PreprocessSpec

if TYPE_CHECKING:
    import onnx

_IMAGES = 3
# Of models that take any size by their declaration only.
_OTHER_SIZES = ((320, 320), (416, 416), (512, 512))


def observer(
    graph: onnx.ModelProto,
    trained: Mapping[str, Any] | None = None,
    images: Path | None = None,
) -> Observe:
    """Return what runs a graph of one image input on sample images.

    It sees nothing of a graph that ONNX Runtime cannot run.

    Args:
        graph: with an input of a fixed size.
        trained: fields of `PreprocessSpec` that override the family's.
        images: folder to take them from; None takes those that ship with Fovea.
    """
    inputs, metadata = graph_inputs(graph), metadata_of(graph)
    names = [output.name for output in graph_outputs(graph)]
    session = cache(lambda: ReferenceSession(graph))

    @cache
    def run(spec: PreprocessSpec) -> Sequence[Outputs]:
        return [
            dict(zip(names, session().run(names, row), strict=True))
            for _, row in read_rows(spec, images, _IMAGES)
        ]

    def observe(family: str | None) -> Sequence[Outputs]:
        try:
            return run(default_preprocess(family, inputs, metadata, trained=trained))
        except UnsupportedModel:
            return ()

    return observe


def recognise_graph(model: onnx.ModelProto, family: str | None = None) -> Recognition:
    """Recognise the head of a model as its exporter wrote it; raises as `recognise`.

    A model that takes any size, but cannot compute the usual one, is run at others.
    """
    for size in (None, *_OTHER_SIZES):
        pinned = deepcopy(model)
        try:
            pin_inputs(pinned, size)
        except (UnsupportedModel, InvalidOption):
            break
        observe = observer(pinned)
        if observe(None):
            seen = graph_inputs(pinned), graph_outputs(pinned), metadata_of(pinned)
            return recognise(*seen, family, observe)
    return recognise(graph_inputs(model), graph_outputs(model), metadata_of(model), family)
