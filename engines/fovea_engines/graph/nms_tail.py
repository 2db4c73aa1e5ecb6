"""Adds decoding and NMS to a detector's graph, in plain operators of fixed shapes.

Cluster NMS (arXiv 2005.03572): all boxes start alive; in each round a box is alive unless a better
one that is alive overlaps it. A round settles at least one more box of each chain of overlapping
boxes, so as many rounds as the longest chain has links give the greedy answer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import onnx
from onnx import TensorProto
from onnx.helper import set_model_props

from fovea_engines.detect.heads.base import Detector, Head, Layout, OnGrid
from fovea_engines.detect.heads.recognise import open_head
from fovea_engines.detect.heads.recognition import Recognition
from fovea_engines.detect.heads.registry import FAMILIES
from fovea_engines.detect.heads.signature import describe
from fovea_engines.detect.heads.yolov10 import YoloV10
from fovea_engines.detect.options import PredictOptions
from fovea_engines.graph.tensors import graph_inputs, graph_outputs, metadata_of, opset_of
from fovea_engines.graph.wiring import rebuild
from fovea_engines.graph.writer import Writer
from fovea_engines.session import TensorSpec
from fovea_preprocess.errors import UnsupportedModel

MAX_CANDIDATES = 512
"""Measured on 64 COCO images: at most 301 boxes have a score of .25 or more (YOLOv5n). At .001,
where mAP is measured, there are thousands, and all but 512 left out cost up to .0008 of it; 1024
would cost nothing, and four times the work."""

ROUNDS = 8
"""Measured on 64 COCO images at an IoU of .7: boxes of .25 and more take 3 at most; the best
512 of any score take 6 of YOLOv8n and YOLOX-nano, and 10 of YOLOv5n (of 62 images 8). Where they
are too few, an even number leaves duplicates, and an odd one would lose boxes."""

_FIRST_OPSET = 18  # since which ReduceMax takes its axes as an input
_USUAL = PredictOptions()


@dataclass(frozen=True, slots=True)
class _Candidates:
    """Names of float32 tensors, best box first.

    Boxes are [batch, 4, count], corners x1 y1 x2 y2 in pixels of the input; scores and the best
    class of each are [batch, 1, count].
    """

    count: int
    boxes: str
    scores: str
    classes: str


def add_nms_tail(
    model: onnx.ModelProto,
    recognition: Recognition,
    *,
    iou: float = _USUAL.iou,
    max_candidates: int = MAX_CANDIDATES,
    max_det: int = _USUAL.max_det,
) -> Recognition:
    """Make a detector suppress duplicates itself and return [batch, max_det, 6], best first.

    Columns are x1 y1 x2 y2 in pixels of the input, score and class, as the head of family yolov10
    reads them; rows of zeros fill the end. All is float32, whatever the model is.

    Args:
        model: in its final precision; changed in place, unless it has no duplicates. The output
            keeps its name and becomes the only one; the metadata says `end2end`.
        recognition: of the unchanged model; that of the changed one is returned.
        iou: a box is dropped when it overlaps a better one of its class by more, 0 to 1.
        max_candidates: most boxes that enter suppression, best first; time and memory grow with the
            square. TensorRT sorts 3840 at most.
        max_det: rows, up to 1000; fewer where fewer boxes enter.

    Raises:
        UnsupportedModel: the model is no detector, or its opset is too old.
    """
    outputs = graph_outputs(model)
    head = open_head(recognition, graph_inputs(model))
    if head is None:
        families = ", ".join(
            name
            for name, each in FAMILIES.items()
            if issubclass(each, Detector) and each.layout is not None
        )
        raise UnsupportedModel(
            f"suppression in the graph is for detectors of {families}: build without it "
            f"({recognition.reason})"
        )
    if head.task != "detect":
        raise UnsupportedModel(
            f"suppression in the graph returns boxes alone, and the task of this model is "
            f"{head.task!r}: build without it"
        )
    if not isinstance(head, Detector) or head.layout is None:
        return recognition
    [spec] = (tensor for tensor in outputs if tensor.name == head.outputs[0])
    _check_graph(model, spec)

    write = Writer(spec.name)
    raw = f"{spec.name}/raw"
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = [raw if name == spec.name else name for name in names]
    found = _write_candidates(write, head, head.layout, raw, spec, max_candidates)
    count = min(max_det, found.count)
    _write_rows(write, found, _write_survivors(write, found, iou), count)
    write.name(spec.name)
    model.graph.initializer.extend(write.constants)
    rebuild(model, iter([*model.graph.node, *write.nodes]))
    _declare(model, spec.name, count)
    rows = f"{spec.name} of {count} rows: {recognition.family} with suppression in the graph"
    return replace(recognition, family=YoloV10.family, reason=rows)


def _write_candidates(
    write: Writer, head: Head, layout: Layout, raw: str, spec: TensorSpec, most: int
) -> _Candidates:
    """Write the decoding of a head, before suppression.

    Scores that are not finite count as 0. Boxes that are not finite overlap no other; readers of
    the result drop them.
    """
    across, along = layout.axis, 3 - layout.axis
    columns, cells = spec.shape[across], spec.shape[along]
    objects = [1] if layout.objectness else []
    widths = [2, 2, *objects, columns - layout.classes]
    if spec.dtype != "float32":
        raw = write.cast(raw, "float32")

    _, _, *objectness, classes = write.split(raw, widths, across)
    best = write("ReduceMax", classes, np.array([across]), keepdims=1)
    for probability in objectness:
        best = write("Mul", probability, best)
    best = write("Reshape", best, np.array([0, 1, cells]))
    finite = write("Less", best, np.array(np.inf, np.float32))
    best = write("Where", finite, best, np.array(0, np.float32))
    count = min(most, cells)
    scores, places = write.top(best, count)

    few = _write_gather(write, raw, places, columns, along)
    if along == 1:
        few = write("Transpose", few, perm=[0, 2, 1])
    centre, size, *_, classes = write.split(few, widths, 1)
    if isinstance(head, OnGrid):
        centre, size = _write_decoded(write, head, centre, size, places, cells)
    corners = centre, size
    if not layout.corners:
        half = write("Mul", size, np.array(0.5, np.float32))
        corners = write("Sub", centre, half), write("Add", centre, half)
    return _Candidates(
        count,
        boxes=write("Concat", *corners, axis=1),
        scores=scores,
        classes=write.cast(write("ArgMax", classes, axis=1, keepdims=1), "float32"),
    )


def _write_gather(write: Writer, table: str, places: str, columns: int, along: int) -> str:
    """Gather rows (along 1) or columns (along 2) of a table [batch, rows, columns].

    The places are integers, [batch, 1, n]; `columns` is the length of the other dimension.
    """
    if along == 1:
        places = write("Reshape", places, np.array([0, -1, 1]))
    whole = np.array([1, 1, columns] if along == 1 else [1, columns, 1])
    return write("GatherElements", table, write("Expand", places, whole), axis=along)


def _write_decoded(
    write: Writer, head: OnGrid, centre: str, size: str, places: str, cells: int
) -> tuple[str, str]:
    origin, stride = head.grid(np.arange(cells), cells)
    x, y, scale = (write("Gather", column, places) for column in (*origin.T, *stride.T))
    centre = write("Add", write("Mul", centre, scale), write("Concat", x, y, axis=1))
    return centre, write("Mul", write("Exp", size), scale)


def _write_survivors(write: Writer, found: _Candidates, iou: float) -> str:
    """Return the survivors: float32 [batch, 1, count], 1 or 0."""
    over = _write_over(write, found, iou)
    alive = _write_none(write, over)
    for _ in range(ROUNDS - 1):
        # Mul and not MatMul, because TensorRT multiplies no float32 matrices on Turing (compute
        # capability 7.5).
        better = write("Mul", over, write("Transpose", alive, perm=[0, 2, 1]))
        alive = _write_none(write, better)
    return alive


def _write_none(write: Writer, over: str) -> str:
    """Mark boxes that nothing overlaps: [batch, 1, n] of [batch, n, n]."""
    any_over = write("ReduceMax", over, np.array([1]), keepdims=1)
    return write("Sub", np.array(1, np.float32), any_over)


def _write_over(write: Writer, found: _Candidates, iou: float) -> str:
    """Mark pairs in which the box of the row is better than that of the column and overlaps it.

    The result is [batch, n, n], computed in float32 by the same steps as
    `fovea_engines.detect.nms`.
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


def _write_rows(write: Writer, found: _Candidates, alive: str, count: int) -> None:
    columns = write("Concat", found.boxes, found.scores, found.classes, axis=1)
    columns = write("Mul", columns, alive)
    _, places = write.top(write("Mul", found.scores, alive), count)
    write("Transpose", _write_gather(write, columns, places, 6, along=2), perm=[0, 2, 1])


def _declare(model: onnx.ModelProto, name: str, rows: int) -> None:
    [value] = (v for v in model.graph.output if v.name == name)
    value.type.tensor_type.elem_type = TensorProto.FLOAT
    for dim, length in zip(value.type.tensor_type.shape.dim[1:], (rows, 6), strict=True):
        dim.dim_value = length
    declared = type(value).FromString(value.SerializeToString())
    del model.graph.output[:]
    model.graph.output.append(declared)
    set_model_props(model, metadata_of(model) | {"end2end": "True"})


def _check_graph(model: onnx.ModelProto, raw: TensorSpec) -> None:
    if -1 in raw.shape[1:]:
        raise UnsupportedModel(
            f"{describe(raw)} has no fixed shape, which suppression in the graph needs: build with "
            "--size HEIGHTxWIDTH"
        )
    if (opset := opset_of(model)) < _FIRST_OPSET:
        raise UnsupportedModel(
            f"the model is of opset {opset}, and suppression in the graph needs {_FIRST_OPSET}: "
            "export it with a newer one"
        )
