"""Loads and normalises a model, and recognises its head, before the conversion to a precision."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx.numpy_helper import to_array

from fovea_engines.build.plan import BuildPlan
from fovea_engines.edit.any_size import any_size
from fovea_engines.evaluation.observe import Observer, recognise_with_batch, working_size
from fovea_engines.evaluation.preprocessing import choose_preprocess, find_misplacement
from fovea_engines.heads.base import Detector
from fovea_engines.heads.head_file import head_in_file
from fovea_engines.heads.image_inputs import list_other_inputs, origin_of
from fovea_engines.heads.metadata import labels_from_metadata, names_fault
from fovea_engines.heads.presets import merge_preprocess
from fovea_engines.heads.recognise import open_head, recognise
from fovea_engines.heads.recognition import TENSORS, Recognition, outputs_text
from fovea_engines.heads.signature import image_layout, image_sides
from fovea_engines.onnx_graph.as_written import add_own_preprocess
from fovea_engines.onnx_graph.batch_axis import NO_BATCH, add_batch
from fovea_engines.onnx_graph.load import load, plugin_operators
from fovea_engines.onnx_graph.normalise import control_flow, normalise, open_size
from fovea_engines.onnx_graph.own_normalisation import own_normalisation
from fovea_engines.onnx_graph.tensors import graph_inputs, graph_outputs, metadata_of
from fovea_engines.onnx_graph.wiring import constants_of
from fovea_engines.progress import Progress
from fovea_engines.repository.labels import set_of
from fovea_engines.results.options import PredictOptions
from fovea_engines.session import Array, TensorSpec
from fovea_preprocess.errors import InvalidOption, UnsupportedModel
from fovea_preprocess.spec import PreprocessSpec
from fovea_preprocess.text import counted

# Operators that do not change the values of their first input.
_SAME = {"Identity", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Cast", "Flatten"}

# Largest quantisation step of scores that is still useful. A score may be wrong by half a step. If
# an exporter quantises boxes in pixels and scores in one tensor, the step is 2 to 3.
_COARSE = 0.1
_WITH_BOXES = ("detect", "segment", "pose", "obb", TENSORS)
# Smallest score of detections whose class ids are checked. Rows of padding have lower scores.
_MIN_SCORE = 0.05


def step_of(model: onnx.ModelProto, output: int) -> float | None:
    """Return the quantisation step of an output, or None if it is not quantised with one step.

    `output` is the index of the output.
    """
    makers = {name: node for node in model.graph.node for name in node.output}
    node = makers.get(model.graph.output[output].name)
    while node is not None and node.op_type in _SAME:
        node = makers.get(node.input[0])
    if node is None or node.op_type != "DequantizeLinear":
        return None
    scale = constants_of(model).get(node.input[1])
    if scale is None or (steps := to_array(scale)).size != 1:
        return None
    return float(np.float32(steps.item()))


@dataclass(frozen=True, slots=True, eq=False)
class PreparedModel:
    """A normalised source model, before its conversion to a precision.

    Attributes:
        graph: float32 graph, or INT8 graph if the exporter quantised the model.
        sha256: SHA-256 of the source file and its external data, in hexadecimal.
        inputs: inputs of the graph. If the graph accepts several sizes, they have the largest size.
        outputs: outputs of the graph.
        head: result of the recognition of the head.
        labels: class names by id; None if unknown.
        preprocess: preprocessing of images.
        preprocess_from: origin of `preprocess`, as a text for messages.
        trained: fields of `preprocess` that the user or the graph sets. The head family sets the
            other fields.
        metadata: key-value pairs that the exporter wrote into the model.
        quantised: True if the exporter wrote QuantizeLinear nodes into the model.
        unproven: names of operators of TensorRT plugins. No other runtime can compute them.
        source: reference graph for the comparison of engines; None means the unchanged source file.
    """

    graph: onnx.ModelProto
    sha256: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    head: Recognition
    labels: tuple[str, ...] | None
    preprocess: PreprocessSpec
    preprocess_from: str | None
    trained: Mapping[str, Any]
    metadata: dict[str, str]
    quantised: bool
    unproven: tuple[str, ...] = ()
    source: onnx.ModelProto | None = None

    def choose_reference(self, plan: BuildPlan) -> Path | onnx.ModelProto:
        """Return the reference model for engines: `source`, or the plan's source file."""
        return plan.source if self.source is None else self.source


def prepare(plan: BuildPlan, progress: Progress) -> PreparedModel:
    """Load and normalise the source of a plan, and recognise its head.

    Raises:
        InvalidOption: an option of the plan does not fit the model.
        InvalidModel: the file is not a readable ONNX model.
        UnsupportedModel: Fovea does not support the model.
    """
    with progress.phase("load"):
        source = load(plan.source)
    if plan.precision == "int8" and not _is_quantised(source.proto):
        # Check this before the next steps, because they take seconds.
        plan.require_calibration()
    if unproven := plugin_operators(source.proto):
        _check_plugins(plan, unproven)
    own = own_normalisation(source.proto)
    trained = merge_preprocess(plan.preprocess, own)
    image, *_ = taken_by_source = graph_inputs(source.proto)
    other_inputs = list_other_inputs(taken_by_source)
    taken = None if plan.size else open_size(source.proto)
    _check_fixed_size(plan, image)
    if own and own.items() <= trained.items():
        progress.note("the model normalises its input itself, so it gets values from 0 to 255")
    with progress.phase("normalise"):
        graph = normalise(source.proto, plan.size, progress.note)
        inputs, outputs, metadata = graph_inputs(graph), graph_outputs(graph), metadata_of(graph)
        _check_batch(plan, inputs[0].shape[0])
    with progress.phase("head"):
        known, head, observe = recognise_with_batch(
            graph, lambda each: _recognise(plan, each, trained, other_inputs)
        )
        compared = None
        if known is not graph:
            graph, compared = known, load(plan.source).proto
            add_batch(compared)
            outputs = graph_outputs(graph)
            progress.note(f"{NO_BATCH}: the engine's outputs are {outputs_text(outputs)}")
        given = None if plan.preprocess is None else trained
        preprocess, origin = choose_preprocess(
            head, inputs, metadata, observe, given, own, plan.preprocess_from
        )
        head = _judge_misplacement(plan, head, find_misplacement(head, inputs, observe, preprocess))
    for remark in _remarks(plan, head, origin, taken):
        progress.note(remark)
    labels = _name_classes(plan, head, metadata, progress)
    if labels is not None:
        _check_class_ids(head, inputs, observe.seen(preprocess), len(labels))
    if plan.runtime.on_gpu or plan.tensorrt is not None:
        check_straight(graph, "TensorRT")
    quantised = _is_quantised(graph)
    _check_steps(plan, graph, head)
    if plan.rect and not head.open:
        graph, preprocess = _make_dynamic(graph, preprocess)
    return PreparedModel(
        graph,
        source.sha256,
        inputs,
        outputs,
        head,
        labels,
        preprocess,
        origin_of(image, origin),
        trained,
        metadata,
        quantised,
        unproven,
        compared,
    )


def _name_classes(
    plan: BuildPlan, head: Recognition, metadata: Mapping[str, str], progress: Progress
) -> tuple[str, ...] | None:
    """Return the class names from the user, the exporter or the head.

    If there are no class names, return None.
    """
    labels = plan.labels or labels_from_metadata(metadata, head.num_classes) or head.labels
    if labels is not None:
        _check_labels(head, len(labels))
    elif head.num_classes:
        progress.note(_describe_nameless(head.num_classes, names_fault(metadata, head.num_classes)))
    return labels


def _make_dynamic(
    graph: onnx.ModelProto, preprocess: PreprocessSpec
) -> tuple[onnx.ModelProto, PreprocessSpec]:
    """Convert a model so that it accepts several sizes, and return its graph and preprocessing.

    Raises:
        InvalidOption: the model's images are not letterboxed.
        UnsupportedModel: the graph works with only one size.
    """
    if preprocess.fit != "letterbox":
        raise InvalidOption(
            f"--rect needs letterboxed images, but for this model they are {preprocess.text}: "
            "leave it out"
        )
    found = any_size(graph)
    return found.dynamic(), replace(preprocess, step=found.stride)


def _recognise(
    plan: BuildPlan,
    graph: onnx.ModelProto,
    trained: Mapping[str, Any],
    other_inputs: tuple[str, ...],
) -> tuple[Recognition, Observer]:
    """Recognise the head of a graph.

    Return the head, and the observer that ran the graph on images.
    """

    def recognise_from(metadata: Mapping[str, str], observe: Observer) -> Recognition:
        force = plan.force_head
        family, named_by = plan.family, plan.family_from
        return recognise(
            *facts,
            metadata,
            family,
            observe,
            other_inputs=other_inputs,
            force=force,
            named_by=named_by,
        )

    facts = graph_inputs(graph), graph_outputs(graph)
    metadata = metadata_of(graph)
    own_head = head_in_file(plan.family) is not None
    observe = Observer(graph, trained, plan.check_images, own_head=own_head)
    if not observe(None):
        _check_size(plan, graph)
    head = recognise_from(metadata, observe)
    if head.unseen and plan.check_images is not None:
        observe = Observer(graph, trained)
        head = recognise_from(metadata, observe)
    if plan.labels and head.num_classes != len(plan.labels):
        # One column of the scores may be a background class. The number of class names decides
        # this, so repeat the recognition with the user's class names.
        named = metadata | {"names": json.dumps(plan.labels)}
        other = recognise_from(named, observe)
        head = other if other.family else head
    if head.resizes or head.guessed:
        head = add_own_preprocess(head, load(plan.source).proto)
    return head, observe


def _check_plugins(plan: BuildPlan, operators: tuple[str, ...]) -> None:
    """Check that a graph with operators of TensorRT plugins can be built with this plan.

    Raises:
        UnsupportedModel: the backend or the precision does not support such operators.
    """
    named = ", ".join(operators)
    what = f"the graph has operators that neither ONNX nor ONNX Runtime defines: {named}"
    if not plan.runtime.takes_builder:
        raise UnsupportedModel(
            f"{what}. {plan.backend} cannot compute them: if TensorRT has a plugin, build with "
            "--backend tensorrt --plugin LIB.so on the machine with the GPU; otherwise export the "
            "model without them (Fovea runs NMS itself)"
        )
    if plan.precision != "fp32" or plan.tensorrt is not None:
        raise UnsupportedModel(
            f"{what}, so another precision cannot be checked: leave out --precision and "
            "--tensorrt (float16 parts of the export stay float16)"
        )


def _check_fixed_size(plan: BuildPlan, image: TensorSpec) -> None:
    """Raise InvalidOption if the source has a fixed size that differs from the plan's size."""
    if plan.size is None or image_layout(image) is None:
        return
    sides = image_sides(image)
    if all(own in (-1, wanted) for own, wanted in zip(sides, plan.size, strict=True)):
        return
    fixed = "x".join("any" if side == -1 else str(side) for side in sides)
    wished = f"{plan.size[0]}x{plan.size[1]}"
    made = plan.source.with_name(f"{plan.source.stem}-{wished}.onnx")
    edit = ["fovea", "edit", str(plan.source), "--size", wished, "--out", str(made)]
    raise InvalidOption(
        f"size {wished} is impossible, because the model's input is fixed at {fixed}: export the "
        f"model with the size that you need, or try `{shlex.join(edit)}` and build the new file"
    )


def _is_quantised(model: onnx.ModelProto) -> bool:
    """Return whether the exporter quantised the model.

    The search includes the model's functions.
    """
    bodies = (model.graph, *model.functions)
    return any(node.op_type == "QuantizeLinear" for body in bodies for node in body.node)


def _check_steps(plan: BuildPlan, graph: onnx.ModelProto, head: Recognition) -> None:
    """Check that the scores of a quantised detector are precise enough.

    Boxes of hundreds of pixels and scores of 0 to 1 may be in one output, with one quantisation
    scale.

    Raises:
        UnsupportedModel: the quantisation step of the output is too large for scores.
    """
    outputs = graph_outputs(graph)
    boxes = len(outputs) == 1 and len(outputs[0].shape) == 3 and head.task in _WITH_BOXES
    if plan.family == TENSORS or not boxes or (step := step_of(graph, 0)) is None:
        return
    if step > _COARSE:
        raise UnsupportedModel(
            f"the quantised output {outputs[0].name} is too coarse: its steps are {step:.2g} for "
            "boxes and scores, but scores need steps of .01. Give the float model to `fovea build "
            "--precision int8 --calibration DIR`, or serve the raw tensors with --head tensors"
        )


def _check_size(plan: BuildPlan, graph: onnx.ModelProto) -> None:
    """Raise UnsupportedModel if a model with a dynamic size fails at the size of `graph`.

    The error is only raised if the model runs at another size, which the message names.
    """
    height, width = image_sides(graph_inputs(graph)[0])
    if (size := working_size(load(plan.source).proto)) is not None:
        raise UnsupportedModel(
            f"ONNX Runtime cannot run the model at {height}x{width}, although its size is "
            f"dynamic: build with --size {size[0]}x{size[1]}, which works"
        )


def _judge_misplacement(plan: BuildPlan, head: Recognition, reason: str | None) -> Recognition:
    """Reject a head whose boxes are misplaced. If the head is forced, add a doubt instead.

    `reason` is the evidence for misplaced boxes, or None.

    Raises:
        UnsupportedModel: the boxes are misplaced, and `force_head` of the plan is False.
    """
    if reason is None:
        return head
    if plan.force_head:
        return replace(head, doubt="; ".join(filter(None, [head.doubt, reason])))
    if (own := head_in_file(head.family)) is not None:
        raise UnsupportedModel(
            f"{own.file} misreads the outputs: {reason}. Correct its decode method; --force-head "
            "skips this check"
        )
    raise UnsupportedModel(
        f"the outputs do not fit the family {head.family}: {reason}. Export the model again "
        f"without reordering outputs, or build with --head tensors; --head {head.family} "
        "--force-head skips this check"
    )


def _remarks(plan: BuildPlan, head: Recognition, origin: str, taken: str | None) -> Iterator[str]:
    """Yield notes for the user about the head.

    `taken` is the input size that Fovea chose for a dynamic size, e.g. "640x640", or None.
    """
    if head.doubt is not None:
        yield _describe_doubt(plan, head)
    if (plan.preprocess is not None or head.guessed) and not head.open:
        yield f"preprocessing: {origin}"
    if head.resizes and taken is not None:
        yield _describe_double_resize(taken)


def _describe_doubt(plan: BuildPlan, head: Recognition) -> str:
    images = (
        "your images" if plan.check_images else ("Fovea's photographs; give your own with --images")
    )
    return f"--head {head.family} is uncertain: {head.doubt} (checked on {images})"


def _describe_double_resize(size: str) -> str:
    return (
        f"the model resizes images itself, but this engine always gets them at {size}, so its "
        "boxes differ slightly from the original program's. Build with --size HxW of your camera "
        "to avoid this"
    )


def _describe_nameless(classes: int, fault: str | None) -> str:
    usual = set_of(classes)
    own = f"--labels {usual} if it was trained on that set, otherwise " if usual else ""
    return (
        f"{fault or 'the file names no classes'}, so results show class numbers: {own}give "
        f"--labels FILE with {classes} lines"
    )


def _check_labels(head: Recognition, names: int) -> None:
    """Raise InvalidOption unless there is one class name for each class."""
    if head.num_classes not in (None, names):
        classes = counted(head.num_classes, "class")
        usual = set_of(head.num_classes)
        own = f", as --labels {usual} has" if usual else ""
        raise InvalidOption(
            f"there are {counted(names, 'label')}, but the model has {classes}: give one label "
            f"for each class{own}"
        )


def _check_class_ids(
    head: Recognition, inputs: Sequence[TensorSpec], seen: Sequence[Mapping[str, Array]], names: int
) -> None:
    """Raise InvalidOption if the model detects a class without a name on the sample images."""
    opened = open_head(head, inputs)
    if not isinstance(opened, Detector):
        return
    options = PredictOptions(conf=_MIN_SCORE)
    found = [opened.decode(outputs, 0, options).class_ids.max(initial=-1) for outputs in seen]
    if (highest := max(found, default=-1)) >= names:
        raise InvalidOption(
            f"the model finds class {highest} on a sample image, but the labels end at class "
            f"{names - 1}: give --labels with one line per class, in the order of the training"
        )


def _check_batch(plan: BuildPlan, rows: int) -> None:
    if rows in (-1, 1) and (rows == -1 or plan.max_batch == 1):
        return
    made = plan.source.with_name(f"{plan.source.stem}-any-batch.onnx")
    edit = ["fovea", "edit", str(plan.source), "--batch", "dynamic", "--out", str(made)]
    cure = (
        f"export it with a dynamic batch size, or run `{shlex.join(edit)}` and build the new file"
    )
    if rows != 1:
        raise UnsupportedModel(f"the model needs exactly {rows} images at a time: {cure}")
    raise InvalidOption(
        f"the model accepts one image at a time, so --max-batch {plan.max_batch} is impossible: "
        f"leave it out, or {cure}"
    )


def check_straight(graph: onnx.ModelProto, what: str) -> None:
    """Raise UnsupportedModel if a graph has control flow.

    `what` is the runtime or precision that does not support control flow, for the message.
    """
    if branches := control_flow(graph):
        raise UnsupportedModel(
            f"the graph has control flow ({branches}) that depends on the image, and {what} does "
            "not support it: build with --precision fp32 for a CPU, or export the model without "
            "control flow (with NMS outside the graph)"
        )


def check_float32(prepared: PreparedModel, precision: str) -> None:
    """Check that a model is a float32 graph without control flow.

    Raises:
        UnsupportedModel: the model has float16 tensors, quantised weights or control flow.
    """
    check_straight(prepared.graph, precision)
    graph = prepared.graph.graph
    ends = (*prepared.inputs, *prepared.outputs)
    held = {weight.data_type for weight in graph.initializer}
    if any(spec.dtype == "float16" for spec in ends) or onnx.TensorProto.FLOAT16 in held:
        raise UnsupportedModel(
            f"the model is float16, and {precision} needs float32: export it in float32, or build "
            "with --precision fp32, which keeps the model in float16"
        )
    if any(node.op_type == "DequantizeLinear" for node in graph.node):
        raise UnsupportedModel(
            f"the exporter has quantised the model's weights, and {precision} needs float32: "
            "export it without quantisation, or build with --precision fp32, which leaves it "
            "unchanged"
        )
