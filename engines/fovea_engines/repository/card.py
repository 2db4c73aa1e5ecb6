"""The card beside an engine: its source, its build, and its agreement with the source."""

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
"""File with the code of a user's head, beside the engine that it decodes."""
NOTHING_SEEN: Final = "no image showed anything that the model finds"
"""Doubt about a head if the images showed nothing that could confirm it."""

FileName = Annotated[str, Field(pattern=r"^\w[\w.-]*$")]


@dataclass(frozen=True, slots=True)
class HeadCandidate:
    """A head family that was considered for the model.

    Attributes:
        family: name of the family.
        strength: strength of the evidence, weakest first: "rare", "possible", "shape", "names",
            "metadata"; None if the outputs exclude the family.
        evidence: evidence for the family; None if the outputs exclude it.
        against: evidence that excludes the family; None if there is none.
    """

    family: str
    strength: str | None
    evidence: str | None
    against: str | None


@dataclass(frozen=True, slots=True)
class EngineCard:
    """Everything that a server needs to know about an engine before it opens the engine.

    Attributes:
        format: version of the card's format.
        name: name of the model.
        created: time of the build, UTC; None without a build (a plain Triton repository).
        content_key: SHA-256 of all inputs of the build; equal keys build equal engines.
        backend: name of the backend.
        backend_version: version of the runtime that compiled and checked the engine.
        device: processor on which the engine was checked.
        precision: element type of the arithmetic.
        onnx_sha256: SHA-256 of the source model, including external data.
        files: name of each file in the version directory -> SHA-256; the first file is the one to
            open.
        max_batch: largest batch size of a call.
        inputs: inputs of the engine.
        outputs: outputs of the engine.
        family: head family, e.g. "yolov8". For a head in a file: its name and the first digits of
            its SHA-256, "my_head.py@0123456789ab". None: not recognised, the engine serves tensors.
        reason: evidence for the family, or against every family.
        task: e.g. "detect"; "tensors" if unknown.
        labels: class names by id; None if unknown.
        preprocess: preprocessing of an image to an input row. Without a family, the usual YOLO
            preprocessing is assumed. None if the model does not accept images.
        agreement: agreement with the source; None without a build.
        build_seconds: phase of the build -> seconds.
        metadata: `metadata_props` of the source model.
        calibration: calibration of INT8; None unless this build quantised the graph.
        accuracy: precision -> accuracy on labelled images; "fp32" is the source model.
        tensorrt: agreement of the graph that was exported for TensorRT, computed by ONNX Runtime;
            None if none was requested.
        judge: backend that computed the figures because the engine could not run; None otherwise.
        builder: options of a TensorRT build; None for other backends.
        gpu: target GPU of a TensorRT engine. None if it was built for the compute capabilities in
            `builder`, and for other backends.
        weight_bits: bits of INT8 weights: 7 if built for CPUs that overflow with 8.
        cpu_features: instruction sets of the CPU that verified the engine, by their Linux names, as
            far as the arithmetic depends on them; empty if every CPU computes it equally.
        candidates: backends and precisions among which the build chose; empty if the user chose.
        goal: criterion of the choice; None if the user chose.
        refused: reason why the engine was rejected; None in every card of a published version.
        head_outputs: names of the outputs that the head reads, in its order; empty without a
            family, and in cards of earlier builds.
        num_classes: number of classes of the head; None if unknown.
        skeleton: skeleton of the keypoints that the head returns; None without keypoints.
        unproven: operators of TensorRT plugins. Nothing else computes them, so the engine was not
            compared with its source. Empty for a checked engine.
        head_candidates: considered families, best first; empty in cards of earlier builds, and if
            --head set the family.
        preprocess_from: origin of the preprocessing, for people: "by the family yolov8", "by
            --preprocess", "a guess: ...". None in cards of earlier builds, and if the model does
            not accept images.
        source_preprocess: preprocessing of the source model, if the graph does the last part of it.
            None if `preprocess` is complete, and in cards of earlier builds.
        head_doubt: evidence against a family that --head or --force-head set, or `NOTHING_SEEN`;
            None if there is none.
        sizes: agreement at some sizes, e.g. "384x640" (height x width), if the engine accepts
            several. `agreement` is measured at the largest size, and `accuracy` also has an entry
            "at one size".
        baseline: distributions of results on the images of the build, for drift detection. None
            without such images, without a head, and in cards of earlier builds.
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
        """Return the reason why this CPU would compute other results, or None."""
        if self.builder is not None:
            return None
        had = ", ".join(self.cpu_features)
        verified = f" and was verified on a CPU with {had}" if had else ""
        if self.precision == "bf16" and not sets_for("bf16"):
            return (
                f"the engine computes in bfloat16{verified}; this CPU ({processor_name()}) has "
                f"neither {' nor '.join(BFLOAT16_SETS)}, and would compute in float32"
            )
        if self.precision == "int8" and self.weight_bits == 8 and int8_saturates():
            return (
                f"the engine has INT8 weights of 8 bits{verified}; this CPU ({processor_name()}) "
                "has no VNNI, and its sums would overflow (weights built here have 7 bits)"
            )
        return None

    @property
    def backend_text(self) -> str:
        """Describe the backend, and the target of a TensorRT engine."""
        text = f"{self.backend} {self.backend_version}"
        if self.builder is None:
            return text
        profiles = " and ".join(str(profile) for profile in self.builder.profiles)
        gpu = self.gpu or target(self.builder)
        return f"{text}, for {gpu}, batches (least, best, most) {profiles}"

    @property
    def checked_text(self) -> str:
        """Describe where the engine's figures were measured."""
        if self.unproven:
            operators = ", ".join(self.unproven)
            return f"nothing: unproven, as only a plugin of TensorRT computes {operators}"
        if self.agreement is None:
            return NO_FIGURE
        if self.judge is None:
            return " with ".join((self.device, *filter(None, [", ".join(self.cpu_features)])))
        return f"{self.device}, by {self.judge} in the engine's place: it has not run yet"

    @property
    def calibration_text(self) -> str | None:
        """Describe the origin of the ranges of an INT8 engine; None for other engines."""
        found = self.calibration
        bits = "" if self.weight_bits == 8 else "; weights in 7 bits, for CPUs without VNNI"
        if found is None:
            return f"scales of the model's exporter{bits}" if self.precision == "int8" else None
        reused = ", measured for an earlier build" if found.reused else ""
        text = f"{found.method} of {counted(found.images, 'image')}{reused}; {found.layers_text}"
        return "\n".join((f"{text}{bits}", *found.remarks))

    @property
    def preprocess_text(self) -> str:
        """Describe the preprocessing and its origin."""
        if self.preprocess is None:
            return NO_FIGURE
        text = self.preprocess.text
        if self.source_preprocess is not None:
            text += f", and in the graph {self.source_preprocess.values_text}"
        return "\n".join(filter(None, [text, self.preprocess_from]))

    @property
    def guess(self) -> str | None:
        """Return warnings about a guessed head or preprocessing; None if both are known."""
        warnings = []
        if self.head_doubt == NOTHING_SEEN:
            warnings.append(
                f"UNVERIFIED: {NOTHING_SEEN}, so nothing has checked that it is of the family "
                f"{self.family}: boxes may have another size. Build with --images that show what "
                "it finds."
            )
        if (self.preprocess_from or "").startswith("a guess"):
            warnings.append(
                "UNVERIFIED: the preprocessing is a guess, which the agreement cannot show, as "
                "engine and source model get the same. Compare one image's answer with that of the "
                "training program, then build with --preprocess."
            )
        return "\n".join(warnings) or None

    def to_json(self) -> dict[str, Any]:
        """Convert the card to plain JSON types."""
        value: dict[str, Any] = _ADAPTER.dump_python(self, mode="json")
        return value

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Read the JSON that `to_json` writes.

        Raises:
            InvalidModel: the JSON is damaged, or a newer format.
        """
        if isinstance(value, dict) and value.get("format", CARD_FORMAT) != CARD_FORMAT:
            raise InvalidModel(
                f"the engine card has format {value['format']}, and this version of Fovea reads "
                f"format {CARD_FORMAT}: build the engine again with this version"
            )
        try:
            # Validated as text, because only JSON's own rules are strict and accept a list as a
            # tuple.
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
        """Read the card at `path`.

        Raises:
            NotFound: the file does not exist.
            InvalidModel: the card is damaged, or a newer format.
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
        """Write the card as indented JSON."""
        write_file(path, json.dumps(self.to_json(), indent=2).encode() + b"\n")


_ADAPTER: TypeAdapter[Any] = TypeAdapter(EngineCard)
