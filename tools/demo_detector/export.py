"""Export trained weights to ONNX: `python -m tools.demo_detector.export --help`."""

import argparse
import tempfile
import warnings
from pathlib import Path
from typing import cast

import onnx
import onnxslim
import torch
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from tools.demo_detector.evaluate import SIDE
from tools.demo_detector.network import Conv, DigitDetector
from tools.demo_detector.output import Decoded
from tools.demo_detector.scenes import CLASS_NAMES

OPSET = 19
# The keys that exporters of the YOLO family write, so that labels and size need no side file.
METADATA = {
    "description": "Fovea demo detector: handwritten digits on photographs",
    "author": "Fovea",
    "license": "Apache-2.0",
    "task": "detect",
    "stride": "32",
    "imgsz": str([SIDE, SIDE]),
    "names": str(dict(enumerate(CLASS_NAMES))),
}


def export(weights: Path, target: Path) -> None:
    """Fold batch norm, trace, simplify, describe, check, save."""
    model = DigitDetector()
    model.load_state_dict(torch.load(weights, weights_only=True))
    traced = onnxslim.slim(_trace(Decoded(fold(model), SIDE)))
    onnx.helper.set_model_props(traced, METADATA)
    onnx.checker.check_model(traced, full_check=True)
    onnx.save(traced, target)


def fold(model: DigitDetector) -> DigitDetector:
    """Write each batch norm into the weights of its convolution."""
    model.eval()
    for module in model.modules():
        if isinstance(module, Conv):
            convolution, norm = cast(nn.Conv2d, module[0]), cast(nn.BatchNorm2d, module[1])
            module[0] = fuse_conv_bn_eval(convolution, norm)
            module[1] = nn.Identity()
    return model


def _trace(decoded: Decoded) -> onnx.ModelProto:
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        # The tracing exporter is on its way out; its successor needs one more package.
        warnings.simplefilter("ignore", DeprecationWarning)
        path = Path(folder) / "traced.onnx"
        torch.onnx.export(
            decoded.eval(),
            (torch.zeros(1, 3, SIDE, SIDE),),
            path,
            input_names=["images"],
            output_names=["output0"],
            dynamic_axes={"images": {0: "batch"}, "output0": {0: "batch"}},
            opset_version=OPSET,
            dynamo=False,
        )
        return onnx.load(path)


def main() -> None:
    """Read the command line and export."""
    parser = argparse.ArgumentParser(description="Export the demo detector to ONNX.")
    parser.add_argument("weights", type=Path, help="digits.pt of the training")
    parser.add_argument("target", type=Path, help="the ONNX file to write")
    options = parser.parse_args()
    export(options.weights, options.target)
    print(f"{options.target}: {options.target.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
