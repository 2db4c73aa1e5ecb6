"""Compares the network in the middle with what the steps around it say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fovea_engines.detect.heads.metadata import labels_from_metadata
from fovea_engines.detect.heads.preprocess import VALUES, default_preprocess
from fovea_engines.detect.heads.signature import image_layout, image_sides
from fovea_preprocess.errors import FoveaError, UnsupportedModel
from fovea_start.triton.fields import ReadPreprocess

if TYPE_CHECKING:
    from fovea_engines.session import TensorSpec


@dataclass(frozen=True, slots=True)
class MiddleNetwork:
    """The facts of an ONNX file.

    Attributes:
        takes: its inputs, for people.
        image: the input that takes the image; None where none does.
        family: of its head; None where that is not known.
        own: fields of a `PreprocessSpec` that the graph decides, as it normalises by itself.
        external: its weights lie in other files.
    """

    takes: str
    image: TensorSpec | None
    family: str | None
    classes: int | None
    labels: tuple[str, ...] | None
    own: Mapping[str, Any]
    metadata: Mapping[str, str]
    external: bool

    @classmethod
    def read(cls, path: Path) -> MiddleNetwork:
        """Read a file, and look at what it computes; raises as `fovea build` does."""
        # Here, because onnx takes 0.3 s to import.
        import onnx

        from fovea_engines.evaluate.observe import recognise_graph
        from fovea_engines.graph.load import load
        from fovea_engines.graph.own_normalisation import own_normalisation
        from fovea_engines.graph.tensors import graph_inputs, metadata_of

        model = load(path).proto
        stored = onnx.load(path, load_external_data=False).graph.initializer
        inputs, metadata = graph_inputs(model), metadata_of(model)
        image = inputs[0] if inputs and image_layout(inputs[0]) is not None else None
        own: Mapping[str, Any] = {}
        family, classes = None, None
        if image is not None:
            with suppress(UnsupportedModel):  # of which the build says more
                own = own_normalisation(model)
                head, _ = recognise_graph(model, None, own)
                family, classes = head.family, head.num_classes
        return cls(
            takes=", ".join(f"{one.name} {one.dtype} {list(one.shape)}" for one in inputs),
            image=image,
            family=family,
            classes=classes,
            labels=labels_from_metadata(metadata, classes),
            own=own,
            metadata=metadata,
            external=any(each.data_location == each.EXTERNAL for each in stored),
        )

    @property
    def whole(self) -> bool:
        """Return True if it takes levels of 0 to 255 as they are."""
        return self.image is not None and not self.image.dtype.startswith("float")

    @property
    def open(self) -> bool:
        """Return True if it takes images of any size."""
        return self.image is not None and -1 in image_sides(self.image)

    def contradictions(self, read: ReadPreprocess, labels: int) -> Iterator[str]:
        """Yield what the steps say and the network does not bear out, for people."""
        if self.image is None:
            yield f"no input takes a colour image ({self.takes}), so it is served as tensors"
            return
        height, width = image_sides(self.image)
        if read.size and not self.open and read.size != (height, width):
            steps = "x".join(map(str, read.size))
            yield f"steps make images of {steps} (height x width), and it takes {height}x{width}"
        if read.values and (self.own or self.whole):
            how = f"takes {self.image.dtype}" if self.whole else "normalises by itself, too"
            yield f"{read.values} changes the levels of 0 to 255, and the network {how}"
        if labels and self.classes and labels != self.classes:
            yield f"there are {labels} labels, and it has {self.classes} classes: they are left out"
        if self.family and read.fields:
            yield from self._unusual(self.image, read)

    def _unusual(self, image: TensorSpec, read: ReadPreprocess) -> Iterator[str]:
        asked = {**self.own, **self.kept(read)}
        size = read.size if self.open else None
        with suppress(FoveaError):  # of which the build says more
            usual, given = (
                default_preprocess(self.family, [image], self.metadata, size, trained)
                for trained in (self.own, asked)
            )
            differ = [name for name in asked if _text(usual, name) != _text(given, name)]
            if differ := [name for name in differ if name != "resample"]:
                said, normal = (
                    ", ".join(f"{name} {_text(spec, name)}" for name in differ)
                    for spec in (given, usual)
                )
                yield f"steps have {said}; models of the family {self.family} usually {normal}"

    def kept(self, read: ReadPreprocess) -> dict[str, object]:
        """Return the fields that a build takes for this network."""
        return {k: v for k, v in read.fields.items() if not (self.whole and k in VALUES)}


def _text(spec: object, name: str) -> str:
    value = getattr(spec, name)
    numbers = value if isinstance(value, list | tuple) else [value]
    return " ".join(f"{n:.4g}" if isinstance(n, float | int) else str(n) for n in numbers)
