"""Runs a model on sample images, so that its head family can be recognised by the outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fovea_engines.evaluation.reference import Outputs, Reference, unsound_with
from fovea_engines.evaluation.samples import read_rows, sample_images
from fovea_engines.heads.image_inputs import list_other_inputs
from fovea_engines.heads.presets import default_preprocess
from fovea_engines.heads.recognise import recognise
from fovea_engines.heads.recognition import Recognition
from fovea_engines.heads.signature import OTHERS, STRIDES, cells
from fovea_engines.onnx_graph.as_written import add_own_preprocess
from fovea_engines.onnx_graph.batch_axis import NO_BATCH, add_batch, lacks_batch
from fovea_engines.onnx_graph.normalise import open_size, pin_inputs
from fovea_engines.onnx_graph.tensors import graph_inputs, graph_outputs, metadata_of
from fovea_preprocess.errors import InvalidOption, UnsupportedModel
from fovea_preprocess.letterbox import LetterboxMap, fit
from fovea_preprocess.spec import PreprocessSpec

if TYPE_CHECKING:
    import onnx

# Number of sample images for recognising a family, and for checking a user's own head.
_IMAGES, _IMAGES_OF_OWN = 3, 8
_OTHER_SIZES = (320, 416, 512)
_SIDES = range(64, 1281, 32)
_BOXES_PER_CELL = (1, 2, 3)


class Observer:
    """Runs a graph with one image input on sample images, with the preprocessing of a family.

    If ONNX Runtime cannot run the graph, the methods return empty results.
    """

    def __init__(
        self,
        graph: onnx.ModelProto,
        trained: Mapping[str, Any] | None = None,
        images: Path | None = None,
        *,
        own_head: bool = False,
    ) -> None:
        """Prepare for a graph whose input has a fixed size.

        Args:
            graph: the model.
            trained: fields of `PreprocessSpec` that override the fields of the family.
            images: directory of the sample images; None for the photographs that are part of Fovea.
            own_head: True if the model has a user's own head. Then more images are run.
        """
        self._graph = graph
        self._facts = graph_inputs(graph), metadata_of(graph)
        self._trained = trained
        self._images = images
        self._most = _IMAGES_OF_OWN if own_head else _IMAGES
        self._seen: dict[tuple[PreprocessSpec, bool], Sequence[Outputs]] = {}

    @cached_property
    def _reference(self) -> Reference:
        names = [output.name for output in graph_outputs(self._graph)]
        return Reference(self._graph, names, unsound_with(None))

    def __call__(self, family: str | None) -> Sequence[Outputs]:
        """Return the outputs for each image, with the preprocessing of a family."""
        try:
            return self.seen(default_preprocess(family, *self._facts, trained=self._trained))
        except UnsupportedModel:
            return ()

    def seen(self, spec: PreprocessSpec, *, moved: bool = False) -> Sequence[Outputs]:
        """Return the outputs for each image. If the graph cannot be run, return an empty list.

        If `moved` is True, each image is mirrored, and appears smaller at the bottom left.
        """
        if (spec, moved) not in self._seen:
            try:
                self._seen[spec, moved] = list(self._run(spec, moved))
            except UnsupportedModel:
                self._seen[spec, moved] = ()
        return self._seen[spec, moved]

    def places(self, spec: PreprocessSpec) -> Sequence[LetterboxMap]:
        """Return the position of each image in the model's input."""
        return [fit(spec, width, height) for width, height in self._sizes]

    @cached_property
    def _sizes(self) -> Sequence[tuple[int, int]]:
        shapes = (pixels.shape for _, pixels in sample_images(self._images, self._most))
        return [(width, height) for height, width, _ in shapes]

    def _run(self, spec: PreprocessSpec, moved: bool) -> Iterator[Outputs]:
        for _, row in read_rows(spec, self._images, self._most, moved=moved):
            yield self._reference.run(row)[0]


def recognise_graph(
    model: onnx.ModelProto, family: str | None = None, trained: Mapping[str, Any] | None = None
) -> tuple[Recognition, tuple[int, int] | None]:
    """Recognise the head of a model file from an exporter. `recognise` describes the errors.

    A model with a dynamic input size is first run at the usual size. If this fails, other sizes are
    tried.

    Returns:
        The recognition, and the (height, width) at which the model was run; None in place of the
            size if the usual size works.
    """
    other_inputs = list_other_inputs(graph_inputs(model))
    for size in (None, *_possible_sizes(model)):
        if (pinned := _copy_at_size(model, size)) is not None:
            observe = Observer(pinned, trained)
            if observe(None):

                def recognise_one(graph: onnx.ModelProto) -> tuple[Recognition, Observer]:
                    seen = graph_inputs(graph), graph_outputs(graph), metadata_of(graph)
                    observe = Observer(graph, trained)
                    return recognise(*seen, family, observe, other_inputs=other_inputs), observe

                _, head, _ = recognise_with_batch(pinned, recognise_one)
                return add_own_preprocess(head, model), size
    facts = graph_inputs(model), graph_outputs(model), metadata_of(model)
    return add_own_preprocess(
        recognise(*facts, family, lambda _: (), other_inputs=other_inputs), model
    ), None


def recognise_with_batch(
    graph: onnx.ModelProto, recognise_one: Callable[[onnx.ModelProto], tuple[Recognition, Observer]]
) -> tuple[onnx.ModelProto, Recognition, Observer]:
    """Recognise a head with `recognise_one`.

    If no family fits, add a batch axis to the graph and try again. `recognise_one` raises all
    errors.

    Returns:
        The graph that was recognised, the recognition, and the observer that ran the graph.
    """
    refused: UnsupportedModel | None = None
    try:
        head, observe = recognise_one(graph)
    except UnsupportedModel as error:
        if OTHERS not in str(error):
            raise
        refused = error
    else:
        if head.family or head.open or not head.verdicts:
            return graph, head, observe
    if not lacks_batch(graph):
        if refused is not None:
            raise refused
        return graph, head, observe
    made = deepcopy(graph)
    add_batch(made)
    other, seen = recognise_one(made)
    other = replace(other, reason=f"{other.reason}; {NO_BATCH}")
    return (made, other, seen) if other.family or other.open else (graph, other, observe)


def working_size(model: onnx.ModelProto) -> tuple[int, int] | None:
    """Return a (height, width) at which ONNX Runtime can run a model with a dynamic input size.

    If no size works, return None.
    """
    for size in _possible_sizes(model):
        pinned = _copy_at_size(model, size)
        if pinned is not None and Observer(pinned)(None):
            return size
    return None


def _possible_sizes(model: onnx.ModelProto) -> Iterator[tuple[int, int]]:
    """Yield the sizes to try for a dynamic input. Sizes that fit the output shapes come first."""
    if open_size(model) is None:
        return
    declared = {length for output in graph_outputs(model) for length in output.shape[1:]}
    for side in _SIDES:
        counts = {cells((side, side), strides) for strides in STRIDES}
        if not declared.isdisjoint(per * n for per in _BOXES_PER_CELL for n in counts):
            yield side, side
    yield from ((side, side) for side in _OTHER_SIZES)


def _copy_at_size(model: onnx.ModelProto, size: tuple[int, int] | None) -> onnx.ModelProto | None:
    """Return a copy of the model with a fixed input size.

    If the model does not accept the size, return None.
    """
    pinned = deepcopy(model)
    try:
        pin_inputs(pinned, size)
    except (UnsupportedModel, InvalidOption):
        return None
    return pinned
