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

# Version of the build code. It is increased when the same source and options give another engine or
# card. Then `fovea build` rebuilds models that older code built.
BUILD_FORMAT = 5
MAX_BATCH = 1024
MAX_SIDE = 8192

AUTO = "auto"
"""Value of options that lets the build choose.

As the only entry of `BuildPlan.keep_float`, the build searches for the blocks that lose most
agreement. As an argument of `choices`, the build tries all backends or precisions and keeps the
fastest engine on this machine.
"""

# FP16 is not in the list, because CPUs compute it as FP32, so it is not faster.
_AUTO_PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16", "int8")


Choice = tuple[str, Precision]
"""Name of a backend, and a precision of its engine."""


def choices(backend: str, precision: str, *, rect: bool = False) -> tuple[Choice, ...]:
    """Return the backends and precisions from which a build chooses. The default comes first.

    Args:
        backend: name of a backend; `AUTO` means all CPU backends.
        precision: precision; `AUTO` means all precisions that are useful on CPUs.
        rect: True if the engine must accept several sizes; see `BuildPlan`.

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
    # If no backend supports the precision with `rect`, return the choices without `rect`.
    # `BuildPlan` then rejects them with a reason.
    return found or choices(backend, precision)


@dataclass(frozen=True, slots=True)
class BuildPlan:
    """The options of one build. The constructor checks them.

    Attributes:
        source: ONNX file of the model.
        name: name of the model in the repository.
        repository: root directory of the repository. The build creates it if it does not exist.
        backend: name of a backend in `BACKENDS`.
        size: (height, width) of the input in pixels; None means the model's own size.
        rect: True for an engine that accepts several input sizes: the multiples of the model's
            stride up to the size. Then each image is letterboxed to the smallest size that can hold
            it.
        max_batch: largest batch size of a call, 1 to 1024.
        labels: class names by id; None means the model's own names.
        family: name of the head family, e.g. one that `load_head` loaded from a user's file. None
            means that the build recognises the family.
        family_from: origin of `family`, as a text for messages.
        force_head: True to use `family` even if the metadata or the output values contradict it.
        images: directory of images for the agreement check; None means the calibration images, or
            the images that ship with Fovea.
        precision: precision of the engine. If the exporter quantised the model, the engine is
            always INT8.
        calibration: directory of images to measure INT8 ranges, or the calibration.json of an
            earlier version with the ranges.
        calibrator: method that computes INT8 ranges from measured values.
        keep_float: names of blocks, or patterns of layer names, that stay float in an INT8 engine.
            ("auto",) means that the build searches for such blocks if the agreement is too low
            without them.
        data: labels to measure the accuracy. For detectors: a COCO file or a directory of YOLO
            labels, whose images are in `images`. For classifiers: a directory that has a
            subdirectory of images for each class.
        max_drop: largest accepted loss of accuracy, 0 to 1. The accuracy of detectors is mAP50-95,
            and the accuracy of classifiers is top-1.
        preprocess: fields of `PreprocessSpec` that differ from the default: RGB, values of 0 to 1,
            letterboxed with the image in the centre. None means the preprocessing of the head
            family.
        preprocess_from: origin of `preprocess`, as a text for messages.
        tensorrt: path where the build writes an additional ONNX file for TensorRT. The build also
            checks this graph.
        image_front: True for an engine that accepts resized uint8 images and normalises them in its
            graph. None means True if the backend's `fuses` is True and resized images have whole
            pixel values.
        nms_tail: True for an engine that runs NMS in its graph. Its output then has 6 values per
            detection instead of all candidate boxes. None means True for detectors of boxes without
            keypoints, if the backend's `fuses` is True.
        text: ONNX file of a text encoder. Its embeddings must be comparable with this model's
            embeddings.
        tokenizer: tokenizer.json of the text encoder, which is `text` or the part of `source` that
            accepts tokens. None means the file tokenizer.json beside `text` or `source`.
        builder: options for backends with `takes_builder`. None means options with
            `default_profiles`.
        choices: backends and precisions to try, beginning with `backend` and `precision`. The build
            keeps the engine that is accepted and fastest for `goal`. If `choices` is empty, it
            builds one engine.
        goal: speed that decides between `choices`: "throughput" of parallel calls, or "latency" of
            single calls.

    Raises:
        InvalidOption: a value is out of its range, or options contradict each other. The
            constructor raises this error.
        BackendUnavailable: the backend is not installed. The constructor raises this error.
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
                f"{head.file} reads outputs without a batch axis, so the model processes one "
                "image at a time: leave --max-batch out"
            )

    def _check_precision(self) -> None:
        if "int8" not in self.precisions and self.keep_float not in ((AUTO,), ()):
            raise InvalidOption("--exclude-nodes needs --precision int8")
        if self.precision not in self.runtime.precisions:
            takers = [one.name for one in BACKENDS.values() if self.precision in one.precisions]
            raise InvalidOption(
                f"--precision {self.precision} needs --backend {' or '.join(takers)}"
            )
        if self.precision == "bf16" and not sets_for("bf16"):
            raise InvalidOption(
                f"--precision bf16 needs a CPU with {' or '.join(BFLOAT16_SETS)}, but this CPU "
                f"({processor_name()}) has neither: use --precision int8 or fp32, which run on "
                "every CPU"
            )
        if len(self.precisions) > 1 and self.tensorrt is not None:
            raise InvalidOption("--tensorrt needs one precision: give --precision fp16 or int8")

    def _check_rect(self) -> None:
        if not self.runtime.several_sizes:
            # OpenVINO is not allowed here: version 2026.4.1 computed NaN for ordinary images when
            # the size changed between calls.
            reason = "may be wrong if the size changes from image to image"
            if self.runtime.on_gpu:
                reason = "need batches of images of one size"
            takers = [one.name for one in BACKENDS.values() if one.several_sizes]
            raise InvalidOption(
                f"--rect needs --backend {' or '.join(takers)}: engines of {self.backend} {reason}"
            )
        if self.image_front or self.nms_tail or self.tensorrt is not None:
            raise InvalidOption(
                "--rect needs preprocessing and decoding outside the graph, because they depend "
                "on the image size: leave out --image-front, --nms-tail and --tensorrt"
            )

    def choice(self, backend: str, precision: Precision) -> BuildPlan:
        """Return the plan for one choice of a backend and a precision.

        Raises:
            InvalidOption: this CPU does not support the choice.
        """
        return replace(self, backend=backend, precision=precision, choices=())

    def _check_files(self) -> None:
        if self.text is not None and self.tokenizer_file is None:
            raise InvalidOption(
                "--text needs the tokenizer of the text encoder: give --tokenizer FILE.json"
            )
        if self.calibration is not None and self.calibration.is_file() and self.images is None:
            raise InvalidOption(
                f"{self.calibration} is not a folder of images: give a folder. If the file "
                "contains the ranges of another build, also give --images for the accuracy check"
            )
        # Do not check the images of labels here: COCO files may refer to images in subdirectories.
        for folder in (self.calibration, self.images if self.data is None else None):
            if folder is not None and not folder.is_file():
                image_files(folder, 1)

    def _check_builder(self, builder: BuilderOptions) -> None:
        if not self.runtime.takes_builder:
            takers = [name for name, backend in BACKENDS.items() if backend.takes_builder]
            raise InvalidOption(
                "--profile, --workspace, --builder-level, --compute-capability and --plugin need "
                f"--backend {' or '.join(takers)}"
            )
        if builder.max_batch != self.max_batch:
            raise InvalidOption(
                f"the profiles allow batches of up to {builder.max_batch}, but --max-batch is "
                f"{self.max_batch}: leave --max-batch out"
            )

    def _check_tensorrt(self, path: Path) -> None:
        if path == self.source.resolve():
            raise InvalidOption(f"--tensorrt {path} is the model itself: give another file")
        if path.is_relative_to(self.repository.resolve()):
            raise InvalidOption(
                f"--tensorrt {path} is in the repository: give a file outside of it"
            )
        if path.is_dir() or not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
            raise InvalidOption(
                f"--tensorrt {path} cannot be written: give a file in an existing folder"
            )

    def require_calibration(self) -> Path:
        """Return the directory of calibration images, or the calibration.json.

        Raises:
            InvalidOption: the plan has no calibration.
        """
        if self.calibration is None:
            raise InvalidOption(
                "INT8 needs --calibration DIR: give a folder of a hundred or more images from "
                "your camera, without labels"
            )
        return self.calibration

    @property
    def tokenizer_file(self) -> Path | None:
        """Return the path of the tokenizer file, or None if the model has no tokenizer file."""
        if self.tokenizer is not None:
            return self.tokenizer
        # Look beside the ONNX files. Optimum exports the tokenizer to this place, and a version
        # directory of a text encoder also has it there.
        near = (each.with_name(TOKENIZER_FILE) for each in (self.text, self.source) if each)
        return next((file for file in near if file.is_file()), None)

    @property
    def runtime(self) -> Backend:
        """Return the backend that compiles and runs the engine."""
        return BACKENDS[self.backend]

    @property
    def precisions(self) -> tuple[Precision, ...]:
        """Return all precisions that the build may use, without duplicates."""
        return tuple(dict.fromkeys((self.precision, *(one for _, one in self.choices))))

    @property
    def encodings(self) -> tuple[Encoding, ...]:
        """Return the INT8 encodings to create: first the engine's, then the TensorRT file's."""
        forms = (self.runtime.encoding, *([] if self.tensorrt is None else [Encoding.SIGNED]))
        return tuple(dict.fromkeys(forms))

    def emulates(self, encoding: Encoding) -> bool:
        """Return whether the build measures graphs with an encoding on the reference backend."""
        return self.runtime.emulated or encoding is not self.runtime.encoding

    @property
    def weight_bits(self) -> WeightBits:
        """Return the number of bits of the weights in the engine's INT8 layers."""
        return self.encodings[0].weight_bits

    @property
    def check_images(self) -> Path | None:
        """Return the directory of images for comparisons.

        None means the images that ship with Fovea.
        """
        if self.images is None and self.calibration is not None and self.calibration.is_dir():
            return self.calibration
        return self.images

    @property
    def backend_version(self) -> str:
        """Return the version of the backend's runtime, e.g. "2026.4.1"."""
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
        """Return a SHA-256 of all inputs that determine the engine and its figures.

        `measured_on` are the digests of the calibration images, the check images and the labels,
        each None if the plan does not have them.
        """
        # Keys for 8-bit weights have no entry for weight bits, so keys of older versions of Fovea
        # stay valid. The text for 7-bit weights includes the revision of the rounding method.
        more: dict[str, Any] = {} if weight_bits == 8 else {"weight_bits": "7, by pairs"}
        if self.choices:
            # The fastest choice depends on the machine, so the key includes the machine's
            # properties.
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
