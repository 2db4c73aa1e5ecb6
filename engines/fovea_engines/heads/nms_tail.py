"""Adds decoding and NMS to a detector's graph, in plain operators of fixed shapes.

The method is Cluster NMS (arXiv 2005.03572). At first, all boxes are kept. In each round, a box is
kept unless a better box that was kept in the round before overlaps it. In a chain of overlapping
boxes, each round fixes the result of at least one more box. Therefore the result equals greedy
suppression after as many rounds as the longest chain has boxes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import numpy as np
import onnx
from onnx import TensorProto
from onnx.helper import make_tensor_value_info, set_model_props

from fovea_engines.heads.base import Detector
from fovea_engines.heads.dense import Dense
from fovea_engines.heads.end_to_end import YoloV10
from fovea_engines.heads.recognise import open_head
from fovea_engines.heads.recognition import Recognition
from fovea_engines.heads.scored_boxes import ScoredBoxes
from fovea_engines.heads.signature import describe
from fovea_engines.heads.traced import Traced
from fovea_engines.onnx_graph.tensors import graph_inputs, graph_outputs, metadata_of, opset_of
from fovea_engines.onnx_graph.wiring import rebuild
from fovea_engines.onnx_graph.writer import Writer
from fovea_engines.results.options import PredictOptions
from fovea_engines.session import TensorSpec
from fovea_preprocess.errors import UnsupportedModel

Decoded = Dense | ScoredBoxes
"""Heads whose decoding can be part of a graph."""

MAX_CANDIDATES = 512
"""Default number of boxes that enter suppression.

On 64 COCO images, at most 301 boxes have a score of .25 or more (YOLOv5n). mAP is measured with a
minimum score of .001. Then there are thousands of boxes, and the limit of 512 lowers the mAP by up
to .0008. A limit of 1024 would not lower the mAP, but would take four times as much computation.
"""

ROUNDS = 8
"""Number of rounds of suppression.

On 64 COCO images at an IoU of .7, boxes with a score of .25 or more need at most 3 rounds. The best
512 boxes of any score need 6 rounds with YOLOv8n and YOLOX-nano, and 10 with YOLOv5n (8 are enough
in 62 of the images). If there are too few rounds, an even number leaves duplicates, while an odd
number would drop boxes that should be kept.
"""

RAW = "/raw"
"""Suffix that is added to the name of a tensor if the tensor was an output before the change."""

_FIRST_OPSET = 18  # first opset in which ReduceMax takes its axes as an input
_USUAL = PredictOptions()


@dataclass(frozen=True, slots=True)
class Candidates:
    """The boxes that enter suppression: names of float32 tensors in the graph, best box first.

    Attributes:
        count: number of boxes.
        boxes: name of a tensor [batch, 4, count], corners x1 y1 x2 y2 in pixels of the input.
        scores: name of a tensor [batch, 1, count].
        classes: name of a tensor [batch, 1, count] with the best class of each box.
    """

    count: int
    boxes: str
    scores: str
    classes: str


@dataclass(frozen=True, slots=True)
class _All:
    """All boxes of a model, before the best boxes are chosen.

    Attributes:
        boxes: [cells, 4], corners of each box.
        best: [cells], best class score of each box.
        classes: class scores of each box.
        along: index of the dimension of the classes, 1 or 2. Dimension 0 is the batch.
    """

    boxes: Traced
    best: Traced
    classes: Traced
    along: Literal[1, 2]


def write_candidates(
    write: Writer, head: Decoded, outputs: Mapping[str, Traced], most: int
) -> Candidates:
    """Write nodes that decode a head's outputs and choose the best boxes.

    Scores that are not finite count as 0. Boxes that are not finite stay unchanged.

    Args:
        write: writer of the graph's nodes.
        head: head whose decoding is written.
        outputs: outputs of the model by name.
        most: largest number of boxes to choose.
    """
    found = _dense(head, outputs) if isinstance(head, Dense) else _scored(head, outputs)
    best = found.best.reshape(1, -1).name
    finite = write("Less", best, np.array(np.inf, np.float32))
    best = write("Where", finite, best, np.array(0, np.float32))
    count = min(most, len(found.boxes))
    scores, places = write.top(best, count)
    classes = write_gather(write, found.classes, places, 3 - found.along)
    best_class = write("ArgMax", classes, axis=found.along, keepdims=1)
    boxes = write_gather(write, found.boxes, places, along=1)
    return Candidates(
        count,
        boxes=write("Transpose", boxes, perm=[0, 2, 1]),
        scores=scores,
        classes=write.cast(write("Reshape", best_class, np.array([0, 1, count])), "float32"),
    )


def _dense(head: Dense, outputs: Mapping[str, Traced]) -> _All:
    layout, table = head.layout, outputs[head.outputs[0]]

    def columns(first: int, end: int | None) -> Traced:
        part = slice(first, end)
        return table[part] if layout.axis == 1 else table[:, part]

    classes = columns(layout.classes, None)
    best = classes.max(axis=layout.axis - 1)
    if layout.objectness:
        best = columns(4, 5).reshape(-1) * best
    values: Any = columns(0, 4)
    cells = len(best)
    if layout.axis == 1:
        values = values.T
    boxes: Any = head.boxes(values, np.arange(cells), cells)
    return _All(boxes, best, classes, layout.axis)


def _scored(head: ScoredBoxes, outputs: Mapping[str, Traced]) -> _All:
    batches: Any = {name: _Batch(tensor) for name, tensor in outputs.items()}
    # Keep only scores and boxes. Some levels also have landmarks.
    columns: Any = zip(*(level[:2] for level in head.levels(batches, 0)), strict=True)
    scores, values = (cast(Any, np.concatenate(parts)) for parts in columns)
    boxes: Any = head.boxes(values, np.arange(len(values)))
    return _All(boxes, scores.max(axis=1), scores, 2)


@dataclass(frozen=True, slots=True)
class _Batch:
    """Takes the place of an output array. For any row, it returns the tensor of the batch."""

    rows: Traced

    @property
    def ndim(self) -> int:
        """Return the number of dimensions, including the batch."""
        return len(self.rows.shape) + 1

    def __getitem__(self, row: int) -> Traced:
        return self.rows


def write_gather(write: Writer, table: Traced, places: str, along: int) -> str:
    """Write nodes that gather rows (along=1) or columns (along=2) of a table.

    The table is [batch, rows, columns]. `places` are indices, [batch, 1, n].
    """
    if along == 1:
        places = write("Reshape", places, np.array([0, -1, 1]))
    columns = table.shape[2 - along]
    whole = np.array([1, 1, columns] if along == 1 else [1, columns, 1])
    return write("GatherElements", table.name, write("Expand", places, whole), axis=along)


def add_nms_tail(
    model: onnx.ModelProto,
    recognition: Recognition,
    *,
    iou: float = _USUAL.iou,
    max_candidates: int = MAX_CANDIDATES,
    max_det: int = _USUAL.max_det,
) -> Recognition:
    """Add suppression to a detector's graph. Its new output is [batch, max_det, 6], best box first.

    The columns are x1 y1 x2 y2 in pixels of the input, score and class. The head of the family
    yolov10 reads this output. Unused rows at the end are 0. Landmarks of faces are dropped. All new
    nodes compute in float32, also if the model has another precision.

    Args:
        model: model in its final precision. It is changed in place, unless its family has no
            duplicates. A single output keeps its name. Several outputs are replaced by
            "detections". The metadata gets the key `end2end`.
        recognition: recognition of the unchanged model.
        iou: a box is dropped if its IoU with a better box of its class exceeds this value, 0 to 1.
        max_candidates: largest number of boxes that enter suppression; the best boxes are chosen.
            Time and memory grow with the square of this number. TensorRT sorts at most 3840 boxes.
        max_det: number of rows of the output, up to 1000. If the model has fewer boxes than this,
            the output has fewer rows.

    Returns:
        The recognition of the changed model.

    Raises:
        UnsupportedModel: the model is not a detector, its family cannot be decoded in a graph, or
            its opset is too old.
    """
    head = open_head(recognition, graph_inputs(model))
    if head is None:
        raise UnsupportedModel(
            "NMS in the graph is for detectors only: build without --nms-tail "
            f"({recognition.reason})"
        )
    if head.task != "detect":
        raise UnsupportedModel(
            f"NMS in the graph returns only boxes, but the model's task is {head.task!r}: build "
            "without --nms-tail"
        )
    if not isinstance(head, Detector) or not head.duplicates:
        return recognition
    if not isinstance(head, Decoded):
        raise UnsupportedModel(
            f"NMS in the graph does not support the family {head.family}: build with "
            "--no-nms-tail, which runs NMS on the CPU"
        )
    specs = [tensor for tensor in graph_outputs(model) if tensor.name in head.outputs]
    _check_graph(model, specs)

    name = head.outputs[0] if len(head.outputs) == 1 else "detections"
    write = Writer(name)
    outputs = {spec.name: _read(write, _rename(model, spec.name), spec) for spec in specs}
    found = write_candidates(write, head, outputs, max_candidates)
    count = min(max_det, found.count)
    _write_rows(write, found, _write_survivors(write, found, iou), count)
    write.name(name)
    model.graph.initializer.extend(write.constants)
    rebuild(model, iter([*model.graph.node, *write.nodes]))
    _declare(model, name, count)
    rows = f"{name} of {count} rows: {recognition.family} with NMS in the graph"
    return replace(recognition, family=YoloV10.family, outputs=(name,), reason=rows, skeleton=None)


def _rename(model: onnx.ModelProto, name: str) -> str:
    raw = name + RAW
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = [raw if one == name else one for one in names]
    return raw


def _read(write: Writer, name: str, spec: TensorSpec) -> Traced:
    """Return an output in float32. If it has no batch axis, add one."""
    if spec.dtype != "float32":
        name = write.cast(name, "float32")
    if len(spec.shape) == 2:
        name = write("Reshape", name, np.array([1, *spec.shape]))
        return Traced(write, name, spec.shape)
    return Traced(write, name, spec.shape[1:])


def _write_survivors(write: Writer, found: Candidates, iou: float) -> str:
    """Write nodes that mark which boxes survive: float32 [batch, 1, count], 1 or 0."""
    over = _write_over(write, found, iou)
    alive = _write_none(write, over)
    for _ in range(ROUNDS - 1):
        # Use Mul and not MatMul, because TensorRT cannot multiply float32 matrices on GPUs of the
        # Turing generation (compute capability 7.5).
        better = write("Mul", over, write("Transpose", alive, perm=[0, 2, 1]))
        alive = _write_none(write, better)
    return alive


def _write_none(write: Writer, over: str) -> str:
    """Write nodes that mark the boxes that no kept box overlaps.

    `over` is [batch, n, n], and the result is [batch, 1, n].
    """
    any_over = write("ReduceMax", over, np.array([1]), keepdims=1)
    return write("Sub", np.array(1, np.float32), any_over)


def _write_over(write: Writer, found: Candidates, iou: float) -> str:
    """Write nodes that mark the pairs of boxes in which one box suppresses the other.

    The result is [batch, n, n]. A pair is marked if the box of the row is better than the box of
    the column and overlaps it. The steps are the same as in `fovea_engines.results.nms`, in
    float32.
    """
    boxes, classes = (
        write("Transpose", tensor, perm=[0, 2, 1]) for tensor in (found.boxes, found.classes)
    )
    a, b = write.split(boxes, [1] * 4, 2), write.split(found.boxes, [1] * 4, 1)
    common = write("Mul", _write_shared(write, a, b, 0), _write_shared(write, a, b, 1))
    areas = write("Add", _write_area(write, a), _write_area(write, b))
    union = write("Max", write("Sub", areas, common), np.array(np.finfo(np.float32).tiny))
    over = write("Greater", write("Div", common, union), np.array(iou, np.float32))
    over = write("And", over, write("Equal", classes, found.classes))
    rank = np.arange(found.count, dtype=np.float32)
    over = write("And", over, write("Less", rank[:, None], rank))
    return write.cast(over, "float32")


def _write_shared(write: Writer, a: list[str], b: list[str], axis: int) -> str:
    last = write("Min", a[axis + 2], b[axis + 2])
    return write("Relu", write("Sub", last, write("Max", a[axis], b[axis])))


def _write_area(write: Writer, box: list[str]) -> str:
    return write("Mul", write("Sub", box[2], box[0]), write("Sub", box[3], box[1]))


def _write_rows(write: Writer, found: Candidates, alive: str, count: int) -> None:
    columns = write("Concat", found.boxes, found.scores, found.classes, axis=1)
    columns = write("Mul", columns, alive)
    _, places = write.top(write("Mul", found.scores, alive), count)
    write(
        "Transpose",
        write_gather(write, Traced(write, columns, (6, found.count)), places, along=2),
        perm=[0, 2, 1],
    )


def _declare(model: onnx.ModelProto, name: str, rows: int) -> None:
    batch = deepcopy(model.graph.input[0].type.tensor_type.shape.dim[0])
    output = make_tensor_value_info(name, TensorProto.FLOAT, [None, rows, 6])
    output.type.tensor_type.shape.dim[0].CopyFrom(batch)
    del model.graph.output[:]
    model.graph.output.append(output)
    set_model_props(model, metadata_of(model) | {"end2end": "True"})


def _check_graph(model: onnx.ModelProto, specs: Sequence[TensorSpec]) -> None:
    for spec in specs:
        # Check all dimensions except the batch axis. A tensor of two dimensions has no batch axis.
        if -1 in (spec.shape if len(spec.shape) == 2 else spec.shape[1:]):
            raise UnsupportedModel(
                f"NMS in the graph needs fixed shapes, but {describe(spec)} is dynamic: build "
                "with --size HEIGHTxWIDTH"
            )
    if (opset := opset_of(model)) < _FIRST_OPSET:
        raise UnsupportedModel(
            f"NMS in the graph needs opset {_FIRST_OPSET} or newer, but the model has opset "
            f"{opset}: export it with a newer one"
        )
