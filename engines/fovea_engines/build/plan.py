"""The options of a build, and their checks."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from fovea_engines.backends.backend import Backend, Encoding
from fovea_engines.backends.registry import (
    BACKENDS,
    CPU_BACKENDS,
    DEFAULT_CPU_BACKEND,
)
from fovea_engines.clip.texts import TOKENIZER_FILE
from fovea_engines.device import BFLOAT16_SETS, WeightBits, processor_name, sets_for, usable_cores
from fovea_engines.evaluation.samples import image_files
from fovea_engines.heads.head_file import head_in_file
from fovea_engines.heads.recognise import check_family
from fovea_engines.repository.card import Precision
from fovea_engines.repository.figures import Goal, Method
from fovea_engines.repository.files import json_sha256
from fovea_engines.repository.options import BuilderOptions, default_profiles, target
from fovea_engines.repository.repository import check_name
from fovea_preprocess.errors import BackendUnavailable, InvalidOption
from fovea_preprocess.spec import PreprocessSpec

# Increased when the same source and options would give another engine or card. Older versions are
# then rebuilt.
BUILD_FORMAT = 5
MAX_BATCH = 1024
MAX_SIDE = 8192

AUTO = "auto"
"""Value for automatic choice.

As the only entry of `BuildPlan.keep_float`, it searches for the blocks that lose most. As a backend
or precision of `choices`, it tries all and keeps the fastest on this machine.
"""

# FP16 is not tried: a CPU computes it as FP32.
_AUTO_PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16", "int8")


Choice = tuple[str, Precision]
"""Name of a backend, and a precision."""


def choices(backend: str, precision: str, *, rect: bool = False) -> tuple[Choice, ...]:
    """Return the backends and precisions that a build chooses from, the current default first.

    Args:
        backend: name of a backend, or `AUTO` for all CPU backends.
        precision: precision, or `AUTO` for all precisions of a CPU.
        rect: as in `BuildPlan`.

    Raises:
        InvalidOption: `AUTO` is used with a GPU backend.
    """
    if precision == AUTO and backend in BACKENDS and BACKENDS[backend].on_gpu:
        raise InvalidOption(
            f"--precision auto is for CPUs: give --backend {backend} --precision fp16 or int8"
        )
    names: Iterable[str] = (backend,)
    if backend == AUTO:
        every = dict.fromkeys((DEFAULT_CPU_BACKEND, *CPU_BACKENDS))
        names = [name for name in every if BACKENDS[name].several_sizes or not rect]
    found = tuple(
        (name, one)
        for one in (_AUTO_PRECISIONS if precision == AUTO else get_args(Precision))
        for name in names
        if precision in (AUTO, one) and (backend != AUTO or one in BACKENDS[name].precisions)
    )
    # If no allowed backend supports the precision, return the unsupported choices. `BuildPlan` then
    # rejects them with a reason.
    return found or choices(backend, precision)


@dataclass(frozen=True, slots=True)
class BuildPlan:
    """One build. Its options are checked before it begins.

    Attributes:
        source: ONNX file of the model.
        name: name of the model in the repository.
        repository: root directory of the repository; created if missing.
        backend: name of a backend in `BACKENDS`.
        size: (height, width) of the input, pixels; None means the model's own size.
        rect: accept every multiple of the model's stride up to the size, and letterbox each image
            to the smallest input that holds it.
        max_batch: largest batch size of a call, 1 to 1024.
        labels: class names by id; None means the model's own names.
        family: head family, which may come from a file (`load_head`); None recognises it.
        family_from: origin of `family`, for people.
        force_head: use the family even if metadata or numbers contradict it.
        images: directory of images for the agreement check; None means the calibration images, or
            the images that ship with Fovea.
        precision: precision of the engine. A model that its exporter quantised is always INT8.
        calibration: directory of images to measure INT8 ranges, or the calibration.json of another
            version.
        calibrator: method that derives INT8 ranges.
        keep_float: blocks or layer patterns that stay float in INT8. ("auto",) searches for them if
            the agreement is too low without.
        data: labelled images to measure the accuracy. For detectors a COCO file or a directory of
            YOLO labels, whose images are in `images`. For classifiers a directory with a
            subdirectory of images per class.
        max_drop: largest accepted loss of mAP50-95 or of a classifier's top-1 accuracy, 0 to 1.
        preprocess: fields of `PreprocessSpec` that differ from the default (RGB, 0 to 1,
            letterboxed around the centre); None means the preprocessing of the family.
        preprocess_from: origin of `preprocess`, for people.
        tensorrt: file for an additional graph for TensorRT, which is checked too.
        image_front: accept decoded uint8 images, and normalise them in the graph; None does so if
            the backend `fuses`.
        nms_tail: run NMS in the graph, which then returns 6 numbers per box instead of all
            candidates; None does so if the backend `fuses`.
        text: text encoder with embeddings in the same space as the embeddings of this model.
        tokenizer: tokenizer.json of the text encoder: of `text`, or of the half of the source that
            accepts tokens. None looks for the file beside them.
        builder: options of backends with `takes_builder`; None means `default_profiles`.
        choices: backends and precisions to try, `backend` and `precision` first. The fastest
            accepted one for the `goal` is kept. Empty means no choice.
        goal: "throughput" or "latency", the criterion of `choices`.

    Raises:
        InvalidOption: on construction, if a value is out of its range.
        BackendUnavailable: on construction, if the backend is not installed.
    """

    source: Path
    name: str
    repository: Path
    backend: str = DEFAULT_CPU_BACKEND
    size: tuple[int, int] | None = None
    rect: bool = False
    max_batch: int = 1
    labels: tuple[str, ...] | None = None
    family: str | None = None
    family_from: str = "chosen by --head"
    force_head: bool = False
    images: Path | None = None
    precision: Precision = "fp32"
    calibration: Path | None = None
    calibrator: Method = "percentile"
    keep_float: tuple[str, ...] = (AUTO,)
    data: Path | None = None
    max_drop: float = 0.01
    preprocess: Mapping[str, Any] | None = None
    preprocess_from: str = "by --preprocess"
    tensorrt: Path | None = None
    image_front: bool | None = None
    nms_tail: bool | None = None
    text: Path | None = None
    tokenizer: Path | None = None
    builder: BuilderOptions | None = None
    choices: tuple[Choice, ...] = ()
    goal: Goal = "throughput"

    def __post_init__(self) -> None:
        check_name(self.name)
        self._check_head()
        if self.backend not in BACKENDS:
            raise InvalidOption(
                f"backend is {self.backend!r}; it must be one of {', '.join(BACKENDS)}"
            )
        if (problem := self.runtime.info.problem) is not None:
            raise BackendUnavailable(f"backend {self.backend} cannot be used: {problem}")
        self._check_precision()
        if not 1 <= self.max_batch <= MAX_BATCH:
            raise InvalidOption(f"max_batch is {self.max_batch}; it must be from 1 to {MAX_BATCH}")
        if self.size is not None and not all(1 <= side <= MAX_SIDE for side in self.size):
            raise InvalidOption(f"size is {self.size}; both sides must be from 1 to {MAX_SIDE}")
        if self.rect:
            self._check_rect()
        self._check_files()
        if self.builder is not None:
            self._check_builder(self.builder)
        elif self.runtime.takes_builder:
            object.__setattr__(self, "builder", BuilderOptions(default_profiles(self.max_batch)))
        if self.tensorrt is not None:
            self._check_tensorrt(self.tensorrt.resolve())
        if not 0 <= self.max_drop <= 1:
            raise InvalidOption(f"max_drop is {self.max_drop}; it must be from 0 to 1")

    def _check_head(self) -> None:
        check_family(self.family)
        head = head_in_file(self.family)
        if self.max_batch > 1 and head is not None and not head.written.batched:
            raise InvalidOption(
                f"{head.file} reads outputs without an axis for the batch, so the model takes one "
                "image at a time: leave --max-batch out"
            )

    def _check_precision(self) -> None:
        if "int8" not in self.precisions and self.keep_float not in ((AUTO,), ()):
            raise InvalidOption("--exclude-nodes is for --precision int8")
        if self.precision not in self.runtime.precisions:
            takers = [one.name for one in BACKENDS.values() if self.precision in one.precisions]
            raise InvalidOption(
                f"--precision {self.precision} is for --backend {' and '.join(takers)}"
            )
        if self.precision == "bf16" and not sets_for("bf16"):
            raise InvalidOption(
                f"--precision bf16 needs a CPU with {' or '.join(BFLOAT16_SETS)}, and this CPU "
                f"({processor_name()}) has neither: use --precision int8 or fp32, which run on "
                "every CPU"
            )
        if len(self.precisions) > 1 and self.tensorrt is not None:
            raise InvalidOption("--tensorrt writes one precision: give --precision fp16 or int8")

    def _check_rect(self) -> None:
        if not self.runtime.several_sizes:
            # OpenVINO 2026.4.1 computed NaN for ordinary images when the size changed between
            # calls.
            reason = "are not sure to be right where the size changes from image to image"
            if self.runtime.on_gpu:
                reason = "take batches of images of one size"
            takers = [one.name for one in BACKENDS.values() if one.several_sizes]
            raise InvalidOption(
                f"--rect is for --backend {' and '.join(takers)}: engines of {self.backend} "
                f"{reason}"
            )
        if self.image_front or self.nms_tail or self.tensorrt is not None:
            raise InvalidOption(
                "--rect decodes boxes outside the graph, because they depend on its size: leave "
                "out --image-front, --nms-tail and --tensorrt"
            )

    def choice(self, backend: str, precision: Precision) -> BuildPlan:
        """Return the plan for one of the choices.

        Raises:
            InvalidOption: this CPU does not support the choice.
        """
        return replace(self, backend=backend, precision=precision, choices=())

    def _check_files(self) -> None:
        if self.text is not None and self.tokenizer_file is None:
            raise InvalidOption(
                "--text needs the tokenizer of the text encoder: --tokenizer FILE.json"
            )
        if self.calibration is not None and self.calibration.is_file() and self.images is None:
            raise InvalidOption(
                f"{self.calibration} is not a folder of images: give a folder. If the file has "
                "the ranges of another build, also give --images for the check"
            )
        # COCO files may refer to images in subdirectories.
        for folder in (self.calibration, self.images if self.data is None else None):
            if folder is not None and not folder.is_file():
                image_files(folder, 1)

    def _check_builder(self, builder: BuilderOptions) -> None:
        if not self.runtime.takes_builder:
            takers = [name for name, backend in BACKENDS.items() if backend.takes_builder]
            raise InvalidOption(
                "--profile, --workspace, --builder-level, --compute-capability and --plugin are "
                f"for --backend {' and '.join(takers)}"
            )
        if builder.max_batch != self.max_batch:
            raise InvalidOption(
                f"the profiles take up to {builder.max_batch} rows, and max_batch is "
                f"{self.max_batch}: leave --max-batch out"
            )

    def _check_tensorrt(self, path: Path) -> None:
        if path == self.source.resolve():
            raise InvalidOption(f"--tensorrt {path} is the model itself: give another file")
        if path.is_relative_to(self.repository.resolve()):
            raise InvalidOption(f"--tensorrt {path} is in the repository: give a file outside")
        if path.is_dir() or not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
            raise InvalidOption(f"--tensorrt {path} cannot be written: give a file in a folder")

    def require_calibration(self) -> Path:
        """Return the source of INT8 ranges.

        Raises:
            InvalidOption: the plan has no calibration.
        """
        if self.calibration is None:
            raise InvalidOption(
                "INT8 needs --calibration DIR: a hundred images or more from your camera, without "
                "labels"
            )
        return self.calibration

    @property
    def tokenizer_file(self) -> Path | None:
        """Return the tokenizer file for a model of texts, or None if there is none."""
        if self.tokenizer is not None:
            return self.tokenizer
        # Optimum writes the file to this place, and a version of a text model stores it there.
        near = (each.with_name(TOKENIZER_FILE) for each in (self.text, self.source) if each)
        return next((file for file in near if file.is_file()), None)

    @property
    def runtime(self) -> Backend:
        """Return the backend that serves the engine."""
        return BACKENDS[self.backend]

    @property
    def precisions(self) -> tuple[Precision, ...]:
        """Return the precisions that may be built, without duplicates."""
        return tuple(dict.fromkeys((self.precision, *(one for _, one in self.choices))))

    @property
    def encodings(self) -> tuple[Encoding, ...]:
        """Return the encodings to create: for the served engine, then for the TensorRT file."""
        forms = (self.runtime.encoding, *([] if self.tensorrt is None else [Encoding.SIGNED]))
        return tuple(dict.fromkeys(forms))

    def emulates(self, encoding: Encoding) -> bool:
        """Return True if the reference backend runs the candidates with an encoding."""
        return self.runtime.emulated or encoding is not self.runtime.encoding

    @property
    def weight_bits(self) -> WeightBits:
        """Return the number of weight bits of the INT8 layers in the served engine."""
        return self.encodings[0].weight_bits

    @property
    def check_images(self) -> Path | None:
        """Return the directory of comparison images; None means the images that ship with Fovea."""
        if self.images is None and self.calibration is not None and self.calibration.is_dir():
            return self.calibration
        return self.images

    @property
    def backend_version(self) -> str:
        """Return the version of the runtime that compiles."""
        return self.runtime.info.version or ""

    def content_key(
        self,
        onnx_sha256: str,
        preprocess: PreprocessSpec,
        labels: Sequence[str] | None,
        family: str | None,
        measured_on: Sequence[str | None],
        weight_bits: WeightBits = 8,
    ) -> str:
        """Return the SHA-256 of everything that determines the engine.

        `measured_on` has the digests of the calibration images, the check images and the labels.
        """
        # Keys of engines with 8-bit weights stay valid: they have no entry for weight bits. The
        # text names the revision of 7-bit weights.
        more: dict[str, Any] = {} if weight_bits == 8 else {"weight_bits": "7, by pairs"}
        if self.choices:
            # The fastest choice depends on the machine.
            more["choices"] = [
                self.goal,
                [(name, BACKENDS[name].info.version, one) for name, one in self.choices],
                [processor_name(), usable_cores(), sets_for("bf16")],
            ]
        return json_sha256(
            {
                "format": BUILD_FORMAT,
                "onnx": onnx_sha256,
                "backend": [self.backend, self.backend_version],
                "max_batch": self.max_batch,
                "labels": labels,
                "family": family,
                "preprocess": preprocess.digest,
                "precision": [self.precision, self.calibrator, self.keep_float],
                "tensorrt": self.tensorrt is not None,
                "within": [
                    self.runtime.fuses if fused is None else fused
                    for fused in (self.image_front, self.nms_tail)
                ],
                "builder": self.builder and [str(self.builder), target(self.builder)],
                "measured_on": measured_on,
                **more,
            }
        )
