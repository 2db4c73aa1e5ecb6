"""Models that their exporter quantised keep their own scales."""

from __future__ import annotations

import onnx

from fovea_engines.backends.backend import Encoding
from fovea_engines.build.int8 import Encode
from fovea_engines.build.plan import AUTO, BuildPlan
from fovea_engines.progress import Progress
from fovea_engines.quantization.half import to_half
from fovea_engines.quantization.recode import quantised_share, recode
from fovea_preprocess.errors import InvalidOption, UnsupportedModel


def keep_exported(plan: BuildPlan, graph: onnx.ModelProto, progress: Progress) -> Encode:
    """Return the conversion that keeps the scales of a model that was quantised in training."""
    if plan.precision in ("fp16", "bf16"):
        raise UnsupportedModel(
            "the model was quantised by its exporter: build it with --precision int8, which keeps "
            "its own scales, or export it without"
        )
    for option, given in (
        ("--calibration", plan.calibration is not None),
        ("--calibrator", plan.calibrator != "percentile"),
        ("--keep-float", plan.keep_float != (AUTO,)),
    ):
        if given:
            raise InvalidOption(
                f"the model was quantised by its exporter and keeps its own scales, so {option} "
                "has no effect: leave it out (--images takes images to check the engine on)"
            )
    done, layers = quantised_share(graph)
    progress.note(
        f"quantised by its exporter and built as it is: {done} of {layers} layers are INT8"
        + ("" if done == layers else ", the others stay float")
    )

    def encode(encoding: Encoding) -> onnx.ModelProto:
        recoded = recode(graph, encoding)
        return to_half(recoded) if encoding is Encoding.SIGNED else recoded

    return encode
