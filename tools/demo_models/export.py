"""Export trained weights to ONNX: `python -m tools.demo_models.export --help`."""

import argparse
import tempfile
import warnings
from pathlib import Path
from typing import cast

import onnx
import onnxslim
import torch
from torch import Tensor, nn

from tools.demo_models import pool
from tools.demo_models.classifier import CROP, DigitClassifier
from tools.demo_models.network import DigitDetector, grid
from tools.demo_models.scenes import CLASS_NAMES
from tools.demo_models.tasks import TASKS, Detect
from tools.demo_models.transformer import Answered, DigitTransformer
from tools.demo_models.weights import fold, halve, trained_detector

OPSET = 19
SIDE = 320


class Decoded(nn.Module):
    """Images to the outputs of YOLOv8's exporter, so that decoders of those read these."""

    def __init__(self, model: DigitDetector, task: Detect) -> None:
        super().__init__()
        self.model, self.task = model, task
        points, strides = grid(SIDE, SIDE)
        self.register_buffer("points", points)
        self.register_buffer("strides", strides)

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Predict and decode."""
        seen = self.model(images)
        points, strides = cast(Tensor, self.points), cast(Tensor, self.strides)
        return self.task.decode(seen, self.task(seen), points, strides)


def export(task: str, weights: Path, detector: Path | None, target: Path) -> None:
    """Fold batch norm, trace, simplify, describe, check, save."""
    network, side = _network(task, weights, detector)
    outputs = Answered.outputs if isinstance(network, Answered) else TASKS.get(task, Detect).outputs
    _save(task, network, side, outputs, target)


def save_detector(model: DigitDetector, target: Path) -> None:
    """Export a detector that is trained."""
    added = Detect()
    _save("detect", Decoded(fold(model), fold(added)), SIDE, added.outputs, target)


def _save(task: str, network: nn.Module, side: int, outputs: tuple[str, ...], target: Path) -> None:
    traced = onnxslim.slim(trace(network, (side, side), outputs))
    # Shapes in between are known from the operators, and take a tenth of the file.
    del traced.graph.value_info[:]
    # The detector is older than the limit of a megabyte; INT8 is judged on true float weights.
    if task not in ("detect", "transformer"):
        halve(traced)
    onnx.helper.set_model_props(traced, _metadata(task, side) | TASKS.get(task, Detect).metadata)
    onnx.checker.check_model(traced, full_check=True)
    onnx.save(traced, target)


def _network(task: str, weights: Path, detector: Path | None) -> tuple[nn.Module, int]:
    learnt = torch.load(weights, weights_only=True)
    if task == "detect":
        model, added = DigitDetector(), Detect()
        model.load_state_dict(learnt)
    else:
        if detector is None:
            raise SystemExit(f"{task} began with a detector: name its ONNX file with --detector")
        model = trained_detector(detector)
        if task == "transformer":
            transformer = DigitTransformer(model)
            transformer.load_state_dict(learnt)
            # Its signs of places are those of the tokens that it was trained on.
            return Answered(transformer), pool.SIDE
        if task == "classify":
            classifier = DigitClassifier(model)
            classifier.load_state_dict(learnt)
            return nn.Sequential(classifier, nn.Softmax(1)), CROP
        added = TASKS[task]()
        own = {name: value for name, value in learnt.items() if name.startswith(f"{task}.")}
        added.load_state_dict({name.removeprefix(f"{task}."): own[name] for name in own})
    return Decoded(fold(model), fold(added)), SIDE


def _metadata(task: str, side: int) -> dict[str, str]:
    """Return the keys that exporters of the YOLO family write: no side file is needed."""
    return {
        "description": f"Fovea demo model ({task}): handwritten digits on photographs",
        "author": "Fovea",
        "license": "Apache-2.0",
        "task": "detect" if task == "transformer" else task,
        "stride": "32",
        "imgsz": str([side, side]),
        "names": str(dict(enumerate(CLASS_NAMES))),
    }


def trace(network: nn.Module, size: tuple[int, int], outputs: tuple[str, ...]) -> onnx.ModelProto:
    """Write a network as a graph that takes batches of images of one height and width."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        # The tracing exporter is on its way out; its successor needs one more package.
        warnings.simplefilter("ignore", DeprecationWarning)
        path = Path(folder) / "traced.onnx"
        torch.onnx.export(
            network.eval(),
            (torch.zeros(1, 3, *size),),
            path,
            input_names=["images"],
            output_names=list(outputs),
            dynamic_axes={name: {0: "batch"} for name in ("images", *outputs)},
            opset_version=OPSET,
            dynamo=False,
        )
        return onnx.load(path)


def main() -> None:
    """Read the command line and export."""
    parser = argparse.ArgumentParser(description="Export a demo model to ONNX.")
    parser.add_argument("task", choices=[*TASKS, "classify", "transformer"])
    parser.add_argument("weights", type=Path, help="weights that the training wrote")
    parser.add_argument("target", type=Path, help="the ONNX file to write")
    parser.add_argument("--detector", type=Path, help="ONNX file that all others began with")
    options = parser.parse_args()
    export(options.task, options.weights, options.detector, options.target)
    print(f"{options.target}: {options.target.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
