"""Adds decoding and NMS to a detector's graph."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fovea_engines.detect.heads.recognise import Recognition, open_head
from fovea_engines.detect.heads.signature import describe
from fovea_engines.detect.heads.yolov5 import YoloV5
from fovea_engines.detect.heads.yolov8 import YoloV8
from fovea_engines.detect.heads.yolov10 import MOST_ROWS, YoloV10
from fovea_engines.detect.heads.yolox import YoloX
from fovea_engines.detect.options import PredictOptions
from fovea_engines.graph.candidates import Candidates, write_candidates, write_gather
from fovea_engines.graph.suppression import write_survivors
from fovea_engines.graph.tensors import graph_inputs, graph_outputs, metadata_of
from fovea_engines.graph.wiring import rebuild
from fovea_engines.graph.writer import Writer
from fovea_preprocess.errors import InvalidOption, UnsupportedModel

if TYPE_CHECKING:
    import onnx

    from fovea_engines.session import TensorSpec

MAX_CANDIDATES = 512
"""Measured on 64 COCO images: at most 301 boxes have a score of .25 or more (YOLOv5n). At .001,
where mAP is measured, there are thousands, and all but 512 left out cost up to .0008 of it; 1024
would cost nothing, and four times the work."""

_MOST_CANDIDATES = 3840
_FAMILIES = (YoloV5.family, YoloV8.family, YoloX.family)
_FIRST_OPSET = 18  # since which ReduceMax takes its axes as an input
_USUAL = PredictOptions()


def add_nms_tail(
    model: onnx.ModelProto,
    recognition: Recognition,
    *,
    iou: float = _USUAL.iou,
    max_candidates: int = MAX_CANDIDATES,
    max_det: int = _USUAL.max_det,
) -> Recognition:
    """Make a detector suppress duplicates itself and return [batch, max_det, 6], best first.

    Columns are x1 y1 x2 y2 in pixels of the input, score and class; rows of zeros fill the end. The
    head of family yolov10 reads it. All is float32, whatever the model is.

    Args:
        model: in its final precision; changed in place. The output keeps its name and becomes the
            only one; the metadata says `end2end`.
        recognition: result for the unchanged model.
        iou: a box is dropped when it overlaps a better one of its class by more, 0 to 1.
        max_candidates: most boxes that enter suppression, best first; time and memory grow with the
            square. 1 to 3840, the most that TensorRT sorts.
        max_det: rows, 1 to 1000; fewer where fewer boxes enter.

    Returns:
        Recognition of the changed model. A model without duplicates stays unchanged, and so does
        its recognition.

    Raises:
        UnsupportedModel: the model is no detector, or its opset is too old.
        InvalidOption: a value is out of its range.
    """
    _check(iou, max_candidates, max_det)
    outputs = graph_outputs(model)
    head = open_head(recognition, graph_inputs(model), outputs)
    if recognition.family == YoloV10.family:
        return recognition
    if head is None or recognition.family not in _FAMILIES:
        raise UnsupportedModel(
            f"suppression in the graph is for detectors of {', '.join(_FAMILIES)}: build without "
            f"it ({recognition.reason})"
        )
    [spec] = (tensor for tensor in outputs if len(tensor.shape) == 3)
    _check_graph(model, spec)

    write = Writer(spec.name)
    raw = f"{spec.name}/raw"
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = [raw if name == spec.name else name for name in names]
    found = write_candidates(write, head, raw, spec, max_candidates)
    count = min(max_det, found.count)
    _write_rows(write, found, write_survivors(write, found, iou), count)
    write.name(spec.name)
    model.graph.initializer.extend(write.constants)
    rebuild(model, iter([*model.graph.node, *write.nodes]))
    _declare(model, spec.name, count)
    rows = f"{spec.name} of {count} rows: {recognition.family} with suppression in the graph"
    return replace(recognition, family=YoloV10.family, reason=rows)


def _write_rows(write: Writer, found: Candidates, alive: str, count: int) -> None:
    """Write the best survivors, [batch, count, 6]."""
    columns = write("Concat", found.boxes, found.scores, found.classes, axis=1)
    columns = write("Mul", columns, alive)
    _, places = write.top(write("Mul", found.scores, alive), count)
    write("Transpose", write_gather(write, columns, places, 6, along=2), perm=[0, 2, 1])


def _declare(model: onnx.ModelProto, name: str, rows: int) -> None:
    """Declare the output [rows, 6] per image."""
    from onnx import TensorProto

    [value] = (v for v in model.graph.output if v.name == name)
    value.type.tensor_type.elem_type = TensorProto.FLOAT
    for dim, length in zip(value.type.tensor_type.shape.dim[1:], (rows, 6), strict=True):
        dim.dim_value = length
    declared = type(value).FromString(value.SerializeToString())
    del model.graph.output[:]
    model.graph.output.append(declared)
    others = {key: text for key, text in metadata_of(model).items() if key != "end2end"}
    del model.metadata_props[:]
    for key, text in {**others, "end2end": "True"}.items():
        model.metadata_props.add(key=key, value=text)


def _check(iou: float, max_candidates: int, max_det: int) -> None:
    # Chained comparisons also refuse NaN.
    if not 0 <= iou <= 1:
        raise InvalidOption(f"iou is {iou}; it must be from 0 to 1")
    if not 1 <= max_candidates <= _MOST_CANDIDATES:
        raise InvalidOption(
            f"max_candidates is {max_candidates}; it must be from 1 to {_MOST_CANDIDATES}"
        )
    if not 1 <= max_det <= MOST_ROWS:
        raise InvalidOption(f"max_det is {max_det}; it must be from 1 to {MOST_ROWS}")


def _check_graph(model: onnx.ModelProto, raw: TensorSpec) -> None:
    if -1 in raw.shape[1:]:
        raise UnsupportedModel(
            f"{describe(raw)} has no fixed shape, which suppression in the graph needs: build with "
            "--size HEIGHTxWIDTH"
        )
    opset = next(o.version for o in model.opset_import if o.domain in ("", "ai.onnx"))
    if opset < _FIRST_OPSET:
        raise UnsupportedModel(
            f"the model is of opset {opset}, and suppression in the graph needs {_FIRST_OPSET}: "
            "export it with a newer one"
        )
