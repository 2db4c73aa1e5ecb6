"""Values that float16 cannot hold."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fovea_engines.evaluate.agreement.samples import read_rows
from fovea_engines.evaluate.reference import ReferenceSession
from fovea_preprocess.errors import Disagreement
from fovea_preprocess.spec import PreprocessSpec

if TYPE_CHECKING:
    import onnx

_IMAGES = 4


def check_overflow(model: onnx.ModelProto, spec: PreprocessSpec, images: Path | None) -> None:
    """Look at every float16 tensor of a graph on a few images.

    ONNX Runtime computes float16 layers in float32 on a CPU and rounds only what leaves the
    graph, so that a GPU's overflow would not be seen in the outputs.

    Args:
        model: with float16 tensors.
        spec: how images are preprocessed.
        images: a folder; None takes those that ship with Fovea.

    Raises:
        Disagreement: one is not finite; the message names the first.
    """
    import onnx

    graph = onnx.shape_inference.infer_shapes(model).graph
    half = {
        value.name
        for value in graph.value_info
        if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT16
    }
    names = [name for node in graph.node for name in node.output if name in half]
    if not names:
        return
    shown = onnx.ModelProto()
    shown.CopyFrom(model)
    shown.graph.output.extend(value for value in graph.value_info if value.name in half)
    reference = ReferenceSession(shown.SerializeToString())
    for image, row in read_rows(spec, images, _IMAGES):
        for name, values in zip(names, reference.run(names, row), strict=True):
            if not np.isfinite(values).all():
                raise Disagreement(
                    f"on {image} the tensor {name!r} goes beyond 65504, where float16 ends: "
                    "build with --precision fp32"
                )
