"""From images to the ranges of a network's tensors."""

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

# With fewer, a scene or two decide every range.
_FEW = 32
# All but one value in a million: objects are rare, and so are the activations that tell of them.
PERCENTILE = 0.999999


def calibrate(model: onnx.ModelProto, images: Images, origin: Origin, progress: Progress) -> Ranges:
    """Run the float network on every image and choose a range for what each layer takes.

    The range of the network's input is measured as well, whether or not a layer takes it.

    Memory does not grow with the number of images: one is held at a time, and of each tensor a
    histogram.

    Args:
        model: normalised, float32.
        images: shown in their order.
        origin: what is being measured; its method chooses the ranges.
        progress: is told of every image, and when there are few.

    Raises:
        BuildError: a tensor takes a value that is not finite.
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
    """Names of the tensors that have a range: the network's input, and what its layers take."""
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
    """A model that gives the named tensors as well."""
    import onnx

    shown = onnx.ModelProto()
    shown.CopyFrom(model)
    known = {value.name for value in (*model.graph.input, *model.graph.output)}
    for name in names:
        if name not in known:
            shown.graph.output.add(name=name)
    serialised: bytes = shown.SerializeToString()
    return serialised
