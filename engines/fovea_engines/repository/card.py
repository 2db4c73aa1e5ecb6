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
"""The head of a user, beside the engine that it decodes."""
NOTHING_SEEN: Final = "no image showed anything that the model finds"
"""The doubt of a head against which no number could speak."""

FileName = Annotated[str, Field(pattern=r"^\w[\w.-]*$")]


@dataclass(frozen=True, slots=True)
class HeadCandidate:
    """A head family that was considered for the model.

    Attributes:
        strength: of the evidence, weakest first: "rare", "possible", "shape", "names", "metadata";
            None where the outputs exclude the family.
        evidence: what speaks for it; None where the outputs exclude it.
        against: what excludes it; None where nothing does.
    """

    family: str
    strength: str | None
    evidence: str | None
    against: str | None


@dataclass(frozen=True, slots=True)
class EngineCard:
    """Everything a server needs to know about an engine before it opens it.

    Attributes:
        created: time of the build, UTC; None where no build was (a plain Triton repository).
        content_key: sha256 of all that went in; equal keys build equal engines.
        backend_version: version of the runtime that compiled and checked the engine.
        device: the processor it was checked on.
        precision: element type of the arithmetic.
        onnx_sha256: of the source model, external data included.
        files: file name in the version folder -> sha256; the one that is opened comes first.
        max_batch: most rows one call may carry.
        family: head family, e.g. "yolov8"; of a head in a file its name and the first digits of its
            sha256, "my_head.py@0123456789ab"; None: not recognised, the engine serves tensors.
        reason: evidence for that family, or against every family.
        head_outputs: names of the outputs that the head reads, in its order; empty without a
            family, and in cards of earlier builds.
        num_classes: of the head; None where unknown.
        skeleton: of the keypoints that the head finds; None without them.
        head_candidates: families that were considered, best first; empty in cards of earlier
            builds, and where --head named the family.
        sizes: agreement at some of the sizes, as "384x640" (height x width), where the engine takes
            several; `agreement` is that at the largest, and `accuracy` has that "at one size", too.
        head_doubt: what speaks against a family that --head named all the same, or --force-head
            forced, or `NOTHING_SEEN`; None where nothing does.
        preprocess_from: the origin of the preprocessing, for people: "by the family yolov8", "by
            --preprocess", "a guess: ..."; None in cards of earlier builds, and where the model
            takes no images.
        task: e.g. "detect"; "tensors" where unknown.
        labels: class names by id; None where unknown.
        preprocess: preprocessing of an image to an input row; without a family the usual YOLO way
            is assumed; None where the model takes no images.
        source_preprocess: that of the source model, where the graph does the last part of it; None
            where `preprocess` is the whole, and in cards of earlier builds.
        agreement: None where no build was.
        build_seconds: by phase of the build.
        metadata: the source model's `metadata_props`.
        calibration: None unless INT8 was written into the graph by this build.
        accuracy: on labelled images, by precision; "fp32" is the source model.
        tensorrt: agreement of the file that was prepared for TensorRT, as ONNX Runtime computes
            it; None when none was requested.
        judge: backend that computed the figures in the engine's place, where it could not run.
        builder: options of a TensorRT build; None for others.
        gpu: the one that a TensorRT engine was built for; None where it was for the compute
            capabilities that `builder` names, and for other backends.
        weight_bits: of INT8 weights: 7 where it was built for CPUs that saturate with 8.
        cpu_features: instruction sets, by Linux's names, that it was verified with and that its
            arithmetic depends on; empty for arithmetic that every CPU has.
        candidates: backends and precisions that the build chose from; empty if the user named one.
        goal: speed that it chose by; None if the user named one.
        unproven: operators of TensorRT's plugins, for which nothing compared the engine with the
            source; empty for a checked engine.
        baseline: what it finds on the images of its build, which live images are compared with;
            None without such images, of models without a head, and in cards of earlier builds.
        refused: reason why it was not published; None in every card of a repository's versions.
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
        """Return the reason why this CPU would compute something else; None if it would not."""
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
        """Describe what runs the engine, and what a TensorRT engine was built for."""
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
        """Describe how an image becomes an input row, and who says so."""
        if self.preprocess is None:
            return NO_FIGURE
        text = self.preprocess.text
        if self.source_preprocess is not None:
            text += f", and in the graph {self.source_preprocess.values_text}"
        return "\n".join(filter(None, [text, self.preprocess_from]))

    @property
    def guess(self) -> str | None:
        """Warn of a head or a preprocessing that is a guess; None where both are known."""
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
        """Convert to plain JSON types."""
        value: dict[str, Any] = _ADAPTER.dump_python(self, mode="json")
        return value

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Read the form that `to_json` writes; `InvalidModel` if it is damaged or newer."""
        if isinstance(value, dict) and value.get("format", CARD_FORMAT) != CARD_FORMAT:
            raise InvalidModel(
                f"the engine card has format {value['format']}, this Fovea reads {CARD_FORMAT}: "
                "build the engine again with this version"
            )
        try:
            # Through text, because only JSON's own rules are strict and take a list for a tuple.
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
        """Read the card at `path`; `NotFound` without one, `InvalidModel` if it is damaged."""
        try:
            return cls.from_json(json.loads(path.read_bytes()))
        except FileNotFoundError as error:
            raise NotFound(f"{path} is not there") from error
        except (ValueError, RecursionError) as error:
            raise InvalidModel(f"{path} is not JSON ({error}): build the engine again") from error
        except InvalidModel as error:
            raise InvalidModel(f"{path}: {error}") from error

    def write(self, path: Path) -> None:
        """Write the card as indented JSON."""
        write_file(path, json.dumps(self.to_json(), indent=2).encode() + b"\n")


_ADAPTER: TypeAdapter[Any] = TypeAdapter(EngineCard)
