"""Measures the ranges of a network's tensors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from fovea_engines.build.calibration.histogram import Histogram
from fovea_engines.build.calibration.images import Images
from fovea_engines.build.calibration.ranges import Method, Origin, Ranges
from fovea_engines.evaluate.reference import ReferenceSession
from fovea_engines.graph.wiring import Wiring
from fovea_engines.plural import counted
from fovea_engines.progress import Progress
from fovea_preprocess.errors import BuildError

if TYPE_CHECKING:
    import onnx

# With fewer images, one or two scenes decide every range.
_FEW = 32
# All but one value in a million: objects are rare, and so are the activations that detect them.
PERCENTILE = 0.999999


def calibrate(model: onnx.ModelProto, images: Images, origin: Origin, progress: Progress) -> Ranges:
    """Run the float network on every image and choose a range for each layer's input.

    The range of the network's input is always measured.

    Memory does not grow with the number of images: it holds one image at a time, and one histogram
    per tensor.

    Args:
        model: normalised, float32.
        images: calibration images, used in their order.
        origin: source of the ranges; its method chooses them.
        progress: reports every image, and too small a number of images.

    Raises:
        BuildError: a tensor has a value that is not finite.
        InvalidImage: an image is damaged.
        InvalidOption: the images are empty scenes.
        UnsupportedModel: ONNX Runtime cannot run the model.
    """
    if len(images) < _FEW:
        few = counted(len(images), "image")
        progress.note(f"{few} to calibrate on: a hundred or more show what the camera will see")
    names = measured_tensors(model)
    seen = {name: Histogram() for name in names}
    reference = ReferenceSession(_showing(model, names))
    asked = [name for name in names if name != model.graph.input[0].name]
    for row in progress.each(images.rows(), len(images)):
        values = dict(zip(asked, reference.run(asked, row), strict=True))
        for name in names:
            try:
                seen[name].add(values.get(name, row))
            except BuildError as error:
                raise BuildError(f"calibration stopped at tensor {name!r}: {error}") from error
    return Ranges(
        origin, len(images), {name: _range(one, origin.method) for name, one in seen.items()}
    )


def measured_tensors(model: onnx.ModelProto) -> list[str]:
    """Return the names of the tensors that need a range: the inputs of network and layers."""
    taken = (node.input[0] for node in Wiring(model).layers())
    return list(dict.fromkeys([model.graph.input[0].name, *taken]))


def _range(seen: Histogram, method: Method) -> tuple[float, float]:
    match method:
        case "minmax":
            return seen.low, seen.high
        case "percentile":
            bound = seen.percentile(PERCENTILE)
        case "entropy":
            bound = seen.entropy()
    return max(seen.low, -bound), min(seen.high, bound)


def _showing(model: onnx.ModelProto, names: Iterable[str]) -> bytes:
    """Return the model with the named tensors as outputs."""
    import onnx

    shown = onnx.ModelProto()
    shown.CopyFrom(model)
    known = {value.name for value in (*model.graph.input, *model.graph.output)}
    for name in names:
        if name not in known:
            shown.graph.output.add(name=name)
    serialised: bytes = shown.SerializeToString()
    return serialised
