"""Fuses preprocessing and NMS into a graph, in place of work on the host."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fovea_engines.build.gate import AGREEMENT_IMAGES, check_detections
from fovea_engines.build.plan import BuildPlan
from fovea_engines.build.prepare import PreparedModel
from fovea_engines.engine import Engine
from fovea_engines.evaluate.samples import sample_images
from fovea_engines.graph.image_front import add_image_front
from fovea_engines.graph.nms_tail import add_nms_tail
from fovea_engines.graph.tensors import graph_inputs, graph_outputs
from fovea_preprocess.errors import Disagreement

if TYPE_CHECKING:
    import onnx

# Rounding in the image front may move INT8 by a step; a wrong NMS tail costs much more.
_MOST_LOST = 0.02


def fuse(plan: BuildPlan, prepared: PreparedModel, graph: onnx.ModelProto) -> PreparedModel:
    """Add the image front and the NMS tail that a plan asks for.

    Args:
        plan: the plan of the build.
        prepared: its source model.
        graph: the source's graph in its final precision; not changed.

    Returns:
        `prepared` with the fused graph and with its new tensors, head and preprocessing.

    Raises:
        UnsupportedModel: a part that was asked for cannot be added to this model.
    """
    import onnx

    fused = onnx.ModelProto()
    fused.CopyFrom(graph)
    head, spec = prepared.head, prepared.preprocess
    # Parts that are only a default are skipped where the model does not support them.
    if plan.nms_tail or (plan.nms_tail is None and plan.for_tensorrt and head.family is not None):
        head = add_nms_tail(fused, head)
    if plan.image_front or (plan.image_front is None and plan.for_tensorrt):
        spec = add_image_front(fused, spec)
    return replace(
        prepared,
        graph=fused,
        inputs=graph_inputs(fused),
        outputs=graph_outputs(fused),
        head=head,
        preprocess=spec,
    )


def check_fused(core: Engine, fused: Engine, images: Path | None = None) -> None:
    """Check that image front and NMS tail do not change the results.

    Args:
        core: engine without them.
        fused: engine with them.
        images: folder of images; None takes those that ship with Fovea.

    Raises:
        Disagreement: boxes differ, or outputs of models without boxes.
    """
    if core.head is None:
        lost = _outputs_lost(core, fused, images)
    else:
        lost = 1 - check_detections(core, fused, images).quality
    # The negation also catches NaN.
    if not lost <= _MOST_LOST:
        raise Disagreement(
            f"with image front and NMS tail in the graph {lost:.1%} of what is found differs: "
            "--no-image-front and --no-nms-tail leave them to the host"
        )


def _outputs_lost(core: Engine, fused: Engine, images: Path | None) -> float:
    """Return the sum of absolute output differences over that of absolute outputs."""
    lost = total = 0.0
    for _, pixels in sample_images(images, AGREEMENT_IMAGES):
        want, have = (one.outputs_of(pixels) for one in (core, fused))
        lost += sum(float(np.abs(have[name] - want[name]).sum()) for name in want)
        total += sum(float(np.abs(array).sum()) for array in want.values())
    return lost / total if total else lost
