"""From pictures to the ranges of a network's tensors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from fovea_engines.calibration.histogram import Histogram
from fovea_engines.calibration.pictures import Pictures
from fovea_engines.calibration.ranges import Method, Origin, Ranges
from fovea_engines.graph.wiring import Wiring
from fovea_engines.progress import Progress
from fovea_preprocess.errors import BuildError, UnsupportedModel

if TYPE_CHECKING:
    import onnx

    from fovea_engines.backends.base import Array

# All but one value in a million: objects are rare, and so are the activations that tell of them.
PERCENTILE = 0.999999


def calibrate(
    model: onnx.ModelProto, pictures: Pictures, origin: Origin, progress: Progress
) -> Ranges:
    """Run the float network on every picture and choose a range for what each layer takes.

    The range of the network's input is measured as well, whether or not a layer takes it.

    Memory does not grow with the number of pictures: one is held at a time, and of each tensor a
    histogram.

    Args:
        model: normalised, float32.
        pictures: shown in their order.
        origin: what is being measured; its method chooses the ranges.
        progress: is told of every picture.

    Raises:
        BuildError: a tensor takes a value that is not finite.
        InvalidImage: a picture is damaged.
        InvalidOption: the pictures are empty scenes.
        UnsupportedModel: ONNX Runtime cannot run the model.
    """
    layers = Wiring(model).layers()
    names = list(dict.fromkeys([model.graph.input[0].name, *(node.input[0] for node in layers)]))
    seen = {name: Histogram() for name in names}
    run = _runner(model, names)
    for row in progress.each(pictures.rows(), len(pictures)):
        for name, values in zip(names, run(row), strict=True):
            try:
                seen[name].add(values)
            except BuildError as error:
                raise BuildError(f"calibration stopped at tensor {name!r}: {error}") from error
    return Ranges(
        origin, len(pictures), {name: _range(one, origin.method) for name, one in seen.items()}
    )


def _range(seen: Histogram, method: Method) -> tuple[float, float]:
    match method:
        case "minmax":
            return seen.low, seen.high
        case "percentile":
            bound = seen.percentile(PERCENTILE)
        case "entropy":
            bound = seen.entropy()
    return max(seen.low, -bound), min(seen.high, bound)


def _runner(model: onnx.ModelProto, names: Iterable[str]) -> Any:
    """A function from a row to the values of the named tensors."""
    import onnx
    import onnxruntime as ort

    names = list(names)
    shown = onnx.ModelProto()
    shown.CopyFrom(model)
    [taken] = (value.name for value in model.graph.input)
    known = {value.name for value in shown.graph.output}
    for name in names:
        if name != taken and name not in known:
            shown.graph.output.add(name=name)
    options = ort.SessionOptions()
    options.log_severity_level = 3
    errors = ort.capi.onnxruntime_pybind11_state
    try:
        session = ort.InferenceSession(
            shown.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    except (errors.Fail, errors.InvalidGraph, errors.NotImplemented) as error:
        raise UnsupportedModel(f"ONNX Runtime cannot run the model: {error}") from error

    asked = [name for name in names if name != taken]

    def run(row: Array) -> list[Array]:
        found = dict(zip(asked, session.run(asked, {taken: row}), strict=True))
        return [row if name == taken else found[name] for name in names]

    return run
