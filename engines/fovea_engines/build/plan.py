"""Holds the options of a build and checks them."""

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

# Raised when the same source and options would give another engine, or more in its card; old ones
# are then rebuilt.
BUILD_FORMAT = 5
MAX_BATCH = 1024
MAX_SIDE = 8192

AUTO = "auto"
"""As the only entry of `BuildPlan.keep_float`: search for the blocks that lose most. As a backend
or precision of `choices`: whichever is fastest here."""

# FP16 is computed as FP32 on a CPU.
_AUTO_PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16", "int8")


Choice = tuple[str, Precision]
"""Name of a backend, and a precision."""


def choices(backend: str, precision: str, *, rect: bool = False) -> tuple[Choice, ...]:
    """Return the backends and precisions that a build may choose from, today's default first.

    Either may be `AUTO`, which is for CPUs: what runs on a GPU is named. `rect` as in `BuildPlan`.
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
    # Where only others have the precision, the plan refuses them with the reason.
    return found or choices(backend, precision)


@dataclass(frozen=True, slots=True)
class BuildPlan:
    """One build, complete and checked before it begins.

    Attributes:
        repository: root folder; created if missing.
        backend: a name of `BACKENDS`.
        choices: backends and precisions to time beside each other, `backend` and `precision` first;
            the fastest for the `goal` that is accepted is kept. Empty times nothing.
        size: (height, width) of the input, pixels; None takes the model's own.
        rect: take every multiple of the model's stride up to that size, and letterbox each image to
            the smallest that holds it.
        max_batch: most rows per call, 1 to 1024.
        labels: class names by id; None takes the model's own.
        family: head family, which may be that of a file (`load_head`); None recognises it.
            `family_from` is what names it, for people.
        force_head: take that family against what the metadata and the numbers say.
        images: folder of images for the agreement check; None takes those of the calibration, or
            those that ship with Fovea.
        precision: a model that its exporter has quantised is INT8.
        calibration: folder of images that INT8 ranges are measured on, or the calibration.json of
            another version.
        keep_float: blocks or patterns of layers that stay float in INT8; ("auto",) searches for
            them if the agreement is not good enough without.
        data: labelled images to measure accuracy on: a COCO file or a folder of YOLO labels, and
            `images` is then the folder of its images; for a classifier a folder that has a folder
            of images for each class.
        max_drop: largest accepted loss of mAP50-95, or of a classifier's top-1, 0 to 1.
        preprocess: fields of `PreprocessSpec` that differ from RGB, 0 to 1, letterboxed around the
            centre; None takes the family's. `preprocess_from` is what names them, for people.
        tensorrt: also write the graph for TensorRT into this file, and check it.
        image_front: take decoded uint8 images and normalise them in the graph; None does so if the
            backend `fuses`.
        nms_tail: suppress duplicates in the graph, which then returns 6 numbers per box instead of
            all candidates; None does so if the backend `fuses`.
        text: network of texts, whose vectors are in the space of this one's.
        tokenizer: tokenizer.json of a network of texts, which `text` is, or the half of the source
            that takes tokens; None takes that beside the source, if the source has such a half.
        builder: options of backends that take them; None has the `default_profiles`.

    Raises:
        InvalidOption: on construction, when a value is out of its range.
        BackendUnavailable: on construction, when the backend is not installed.
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
            # OpenVINO 2026.4.1 gave NaN for ordinary images where sizes change from call to call.
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
        """Return the plan of one of the choices alone; InvalidOption where this CPU cannot."""
        return replace(self, backend=backend, precision=precision, choices=())

    def _check_files(self) -> None:
        if self.text is not None and self.tokenizer_file is None:
            raise InvalidOption(
                "--text needs the tokenizer of the text encoder: --tokenizer FILE.json"
            )
        if self.calibration is not None and self.calibration.is_file() and self.images is None:
            raise InvalidOption(
                f"{self.calibration} is not a folder of images: give a folder; if the file holds "
                "the ranges of another build, add --images to check the engine on"
            )
        # COCO files may name images in subfolders.
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
        """Return the origin of INT8 ranges; an InvalidOption without one."""
        if self.calibration is None:
            raise InvalidOption(
                "INT8 needs --calibration DIR: a hundred images or more from your camera, without "
                "labels"
            )
        return self.calibration

    @property
    def tokenizer_file(self) -> Path | None:
        """Return the tokenizer of a network that may take texts; None for one without."""
        if self.tokenizer is not None:
            return self.tokenizer
        # Where Optimum writes it, and where a version of a model of texts has it.
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
        """Return the forms of the graph to make: that of the served engine, then of the file."""
        forms = (self.runtime.encoding, *([] if self.tensorrt is None else [Encoding.SIGNED]))
        return tuple(dict.fromkeys(forms))

    def emulates(self, encoding: Encoding) -> bool:
        """Return True if the reference backend computes candidates in that form."""
        return self.runtime.emulated or encoding is not self.runtime.encoding

    @property
    def weight_bits(self) -> WeightBits:
        """Return the bits of the weights of INT8 layers that are served."""
        return self.encodings[0].weight_bits

    @property
    def check_images(self) -> Path | None:
        """Return the folder of comparison images; None for those that ship with Fovea."""
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
        """Return the sha256 of everything the engine depends on; equal keys give equal engines.

        `measured_on` has the digests of the calibration images and of the labelled ones.
        """
        # Engines with 8 bits keep the keys of before there were any with 7, whose pairs came later.
        more: dict[str, Any] = {} if weight_bits == 8 else {"weight_bits": "7, by pairs"}
        if self.choices:
            # What is fastest depends on the machine.
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
