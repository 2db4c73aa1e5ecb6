"""Defines the card beside an engine: its source, its build, and its measured figures."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, TypeAdapter, ValidationError

from fovea_engines.device import (
    BFLOAT16_SETS,
    Gpu,
    WeightBits,
    int8_saturates,
    processor_name,
    sets_for,
)
from fovea_engines.repository.accuracy import AnyAccuracy
from fovea_engines.repository.baseline import MIN_LIVE as MIN_LIVE
from fovea_engines.repository.baseline import Baseline as Baseline
from fovea_engines.repository.baseline import Distribution as Distribution
from fovea_engines.repository.baseline import Floats as Floats
from fovea_engines.repository.baseline import Found as Found
from fovea_engines.repository.baseline import select_values as select_values
from fovea_engines.repository.figures import (
    NO_FIGURE,
    Agreement,
    Calibration,
    CandidateFigures,
    Goal,
)
from fovea_engines.repository.figures import Precision as Precision
from fovea_engines.repository.figures import StageAgreement as StageAgreement
from fovea_engines.repository.files import write_file
from fovea_engines.repository.options import BuilderOptions, target
from fovea_engines.results.skeleton import Skeleton
from fovea_engines.session import TensorSpec
from fovea_preprocess.errors import InvalidModel, NotFound
from fovea_preprocess.spec import PreprocessSpec
from fovea_preprocess.text import counted

CARD_FORMAT: Final = 1
CARD_FILE = "card.json"
HEAD_FILE = "head.py"
"""Name of the file with the Python code of a user's head, beside the engine."""
NOTHING_SEEN: Final = "no image showed anything that the model finds"
"""Value of `head_doubt` if the build's images showed nothing that could confirm the head."""

FileName = Annotated[str, Field(pattern=r"^\w[\w.-]*$")]


@dataclass(frozen=True, slots=True)
class HeadCandidate:
    """A head family that the recognition considered for the model.

    Attributes:
        family: name of the family.
        strength: strength of the evidence for the family. The values, from weak to strong, are
            "rare", "possible", "shape", "names" and "metadata". None if the outputs exclude the
            family.
        evidence: text about the evidence for the family; None if the outputs exclude the family.
        against: text about the evidence that excludes the family; None if the family is possible.
    """

    family: str
    strength: str | None
    evidence: str | None
    against: str | None


@dataclass(frozen=True, slots=True)
class EngineCard:
    """The description of an engine. A server reads it before it opens the engine.

    Attributes:
        format: version of the card's format.
        name: name of the model.
        created: time of the build in UTC; None for a plain Triton repository, whose engines Fovea
            did not build.
        content_key: SHA-256 of all inputs of the build. Builds with equal keys create equal
            engines.
        backend: name of the backend.
        backend_version: version of the runtime that compiled and checked the engine.
        device: name of the processor or GPU on which the engine was checked.
        precision: precision of the engine, e.g. "int8".
        onnx_sha256: SHA-256 of the source model, including external data.
        files: name of each file in the version directory -> its SHA-256. The first file is the
            engine file.
        max_batch: largest batch size of a call.
        inputs: inputs of the engine.
        outputs: outputs of the engine.
        family: head family, e.g. "yolov8". For a user's head: the name of its file and the first
            digits of the file's SHA-256, e.g. "my_head.py@0123456789ab". None if no family was
            recognised; then the engine only serves tensors.
        reason: text about the evidence for the family. If no family was recognised, the evidence
            against all families.
        task: task of the model, e.g. "detect"; "tensors" if it is unknown.
        labels: class names by id; None if unknown.
        preprocess: preprocessing of an image for the engine's input. If no family was recognised,
            this is the usual YOLO preprocessing. None if the model does not accept images.
        agreement: agreement with the source model; None if it was not measured.
        build_seconds: name of each phase of the build -> its duration in seconds.
        metadata: `metadata_props` of the source model.
        calibration: description of the INT8 calibration; None if the build did not quantise the
            model.
        accuracy: name of each measured graph, e.g. its precision -> its accuracy on labelled
            images. The entry "fp32" is the source model.
        tensorrt: agreement of the additional graph for TensorRT, as ONNX Runtime computes it; None
            if the build did not write such a graph.
        judge: name of the backend that computed the figures, because the engine could not run on
            the build's machine; None if the engine computed them itself.
        builder: options of a TensorRT build; None for other backends.
        gpu: target GPU of a TensorRT engine. None for other backends, and if the engine was built
            for the compute capabilities in `builder`.
        weight_bits: number of bits of INT8 weights. 7 if the build was for a CPU that overflows
            with 8 bits; otherwise 8.
        cpu_features: Linux's names of the instruction sets that the build's CPU used for the
            engine's INT8 or bfloat16 arithmetic. Empty if every CPU computes the engine equally.
        candidates: backends and precisions from which the build chose; empty if the user set both.
        goal: criterion of the build's choice; None if the user set the backend and precision.
        refused: reason why the engine was rejected; None for a published version.
        head_outputs: names of the outputs that the head reads, in the head's order. Empty without a
            family, and in cards of earlier builds.
        num_classes: number of classes of the model; None if unknown.
        skeleton: skeleton of the keypoints that the head returns; None without keypoints.
        unproven: names of operators of TensorRT plugins. No other runtime can compute them, so the
            engine was not compared with its source. Empty if the engine was compared.
        head_candidates: head families that the recognition considered, the best first. Empty in
            cards of earlier builds, and if --head set the family.
        preprocess_from: text about the origin of the preprocessing, e.g. "by the family yolov8",
            "by --preprocess" or "a guess: ...". None in cards of earlier builds, and if the model
            does not accept images.
        source_preprocess: complete preprocessing of the source model, if the engine's graph
            contains its last part. None if `preprocess` is complete, and in cards of earlier
            builds.
        head_doubt: text about the evidence against a family that --head or --force-head set, or
            `NOTHING_SEEN`. None if there is no doubt.
        sizes: input size "HEIGHTxWIDTH", e.g. "384x640" -> agreement at this size, for some sizes
            of an engine that accepts several. `agreement` is the agreement at the largest size, and
            `accuracy` also has an entry "... at one size".
        baseline: distributions of the results on the images of the build, for drift detection. None
            if the build had too few images, without a head, and in cards of earlier builds.
    """

    format: Literal[1]
    name: str
    created: datetime | None
    content_key: str
    backend: str
    backend_version: str
    device: str
    precision: Precision
    onnx_sha256: str
    files: Annotated[dict[FileName, str], Field(min_length=1)]
    max_batch: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    family: str | None
    reason: str
    task: str
    labels: tuple[str, ...] | None
    preprocess: PreprocessSpec | None
    agreement: Agreement | None
    build_seconds: dict[str, float]
    metadata: dict[str, str]
    calibration: Calibration | None = None
    accuracy: dict[str, AnyAccuracy] = field(default_factory=dict)
    tensorrt: Agreement | None = None
    judge: str | None = None
    builder: BuilderOptions | None = None
    gpu: Gpu | None = None
    weight_bits: WeightBits = 8
    cpu_features: tuple[str, ...] = ()
    candidates: tuple[CandidateFigures, ...] = ()
    goal: Goal | None = None
    refused: str | None = None
    head_outputs: tuple[str, ...] = ()
    num_classes: int | None = None
    skeleton: Skeleton | None = None
    unproven: tuple[str, ...] = ()
    head_candidates: tuple[HeadCandidate, ...] = ()
    preprocess_from: str | None = None
    source_preprocess: PreprocessSpec | None = None
    head_doubt: str | None = None
    sizes: dict[str, Agreement] = field(default_factory=dict)
    baseline: Baseline | None = None

    @property
    def cpu_mismatch(self) -> str | None:
        """Return the reason why this CPU would compute different results than the CPU of the build.

        If it would compute the same results, return None.
        """
        if self.builder is not None:
            return None
        had = ", ".join(self.cpu_features)
        verified = f" and was verified on a CPU with {had}" if had else ""
        if self.precision == "bf16" and not sets_for("bf16"):
            return (
                f"the engine computes in bfloat16{verified}; this CPU ({processor_name()}) has "
                f"neither {' nor '.join(BFLOAT16_SETS)}, so it would compute in float32"
            )
        if self.precision == "int8" and self.weight_bits == 8 and int8_saturates():
            return (
                f"the engine has INT8 weights of 8 bits{verified}; this CPU ({processor_name()}) "
                "has no VNNI, so sums would overflow (a build on this CPU uses 7 bits)"
            )
        return None

    @property
    def backend_text(self) -> str:
        """Return a text about the backend, and the target of a TensorRT engine."""
        text = f"{self.backend} {self.backend_version}"
        if self.builder is None:
            return text
        profiles = " and ".join(str(profile) for profile in self.builder.profiles)
        gpu = self.gpu or target(self.builder)
        return f"{text}, for {gpu}, batch sizes (minimum, best, maximum) {profiles}"

    @property
    def checked_text(self) -> str:
        """Return a text about the device on which the engine's figures were measured."""
        if self.unproven:
            operators = ", ".join(self.unproven)
            return f"nothing (unproven): only a plugin of TensorRT computes {operators}"
        if self.agreement is None:
            return NO_FIGURE
        if self.judge is None:
            return " with ".join((self.device, *filter(None, [", ".join(self.cpu_features)])))
        return f"{self.device}, with {self.judge} instead of the engine: it has not run yet"

    @property
    def calibration_text(self) -> str | None:
        """Return a text about the origin of an INT8 engine's ranges, or None for other engines."""
        found = self.calibration
        bits = "" if self.weight_bits == 8 else "; weights in 7 bits, for CPUs without VNNI"
        if found is None:
            return f"scales of the model's exporter{bits}" if self.precision == "int8" else None
        reused = ", measured for an earlier build" if found.reused else ""
        text = f"{found.method} of {counted(found.images, 'image')}{reused}; {found.layers_text}"
        return "\n".join((f"{text}{bits}", *found.remarks))

    @property
    def preprocess_text(self) -> str:
        """Return a text about the preprocessing and its origin."""
        if self.preprocess is None:
            return NO_FIGURE
        text = self.preprocess.text
        if self.source_preprocess is not None:
            text += f", and in the graph {self.source_preprocess.values_text}"
        return "\n".join(filter(None, [text, self.preprocess_from]))

    @property
    def guess(self) -> str | None:
        """Return warnings about a guessed head or preprocessing, or None if both are certain."""
        warnings = []
        if self.head_doubt == NOTHING_SEEN:
            warnings.append(
                f"UNVERIFIED: {NOTHING_SEEN}, so it is not certain that the model is of the "
                f"family {self.family}: boxes may have a wrong size. Build with --images that "
                "show objects of its classes."
            )
        if (self.preprocess_from or "").startswith("a guess"):
            warnings.append(
                "UNVERIFIED: the preprocessing is a guess. The agreement cannot show a wrong "
                "guess, because engine and source model get the same input. Compare the result "
                "for one image with the training program's, then build with --preprocess."
            )
        return "\n".join(warnings) or None

    def to_json(self) -> dict[str, Any]:
        """Convert the card to dictionaries, lists, strings and numbers."""
        value: dict[str, Any] = _ADAPTER.dump_python(self, mode="json")
        return value

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Create a card from the value that `to_json` returns.

        Raises:
            InvalidModel: the value is not a valid card, or has a newer format.
        """
        if isinstance(value, dict) and value.get("format", CARD_FORMAT) != CARD_FORMAT:
            raise InvalidModel(
                f"the engine card has format {value['format']}, but this version of Fovea reads "
                f"format {CARD_FORMAT}: build the engine again with this version"
            )
        try:
            # Validate the value as JSON text: pydantic's strict mode accepts a list for a tuple
            # only in JSON text.
            card: Self = _ADAPTER.validate_json(json.dumps(value), strict=True)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            field = ".".join(str(part) for part in first["loc"]) or "the whole"
            raise InvalidModel(
                f"the engine card is damaged ({field}: {first['msg']}): build the engine again"
            ) from error
        return card

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a card from a file.

        Raises:
            NotFound: the file does not exist.
            InvalidModel: the card is damaged, or has a newer format.
        """
        try:
            return cls.from_json(json.loads(path.read_bytes()))
        except FileNotFoundError as error:
            raise NotFound(f"{path} does not exist") from error
        except (ValueError, RecursionError) as error:
            raise InvalidModel(f"{path} is not JSON ({error}): build the engine again") from error
        except InvalidModel as error:
            raise InvalidModel(f"{path}: {error}") from error

    def write(self, path: Path) -> None:
        """Write the card to a file as indented JSON."""
        write_file(path, json.dumps(self.to_json(), indent=2).encode() + b"\n")


_ADAPTER: TypeAdapter[Any] = TypeAdapter(EngineCard)
