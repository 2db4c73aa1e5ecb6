"""Opens an engine of a repository: pixels in, detections out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from fovea_engines.backends.registry import (
    get_backend,
    mismatch,
    open_session,
)
from fovea_engines.clip.opening import open_words, own_words
from fovea_engines.clip.texts import Words
from fovea_engines.heads.head_file import load_head_of
from fovea_engines.heads.image_inputs import source_feeds
from fovea_engines.heads.recognise import open_head, recognise
from fovea_engines.heads.recognition import Recognition
from fovea_engines.plain_engine import PlainChoice, open_plain
from fovea_engines.repository.card import CARD_FILE, EngineCard
from fovea_engines.repository.files import file_sha256
from fovea_engines.results.class_names import resolve_classes
from fovea_engines.results.detections import Detections
from fovea_engines.results.embedding import Embedding
from fovea_engines.results.mosaic import Mosaic
from fovea_engines.results.new_image import NewImage
from fovea_engines.results.options import PredictOptions, check_effect
from fovea_engines.results.task_result import TaskResult
from fovea_engines.results.tiles import crop, cut, join_tiles
from fovea_engines.results.vocabulary import Vocabulary
from fovea_engines.session import (
    Array,
    Closing,
    ImageSession,
    Session,
    TensorSpec,
    sort_like,
)
from fovea_preprocess.errors import (
    BackendUnavailable,
    InvalidModel,
    InvalidOption,
    NotFinite,
    UnsupportedModel,
)
from fovea_preprocess.letterbox import LetterboxMap, least_size
from fovea_preprocess.preprocessor import Preprocessor
from fovea_preprocess.spec import PreprocessSpec

_DEFAULTS = PredictOptions()


class Engine(Closing):
    """An engine with its preprocessing and its head. It converts images to results.

    An engine is a context manager that closes its session.

    Attributes:
        card: the card of the engine; derived when the version directory has none.
        session: loaded engine file of the runtime. Its `infer` takes and returns arrays.
        images: the session again if its device letterboxes images; otherwise None.
        preprocessor: preprocessing for the largest input size; None if the model does not accept
            images.
        head: decoder of the outputs for the largest input size; None if the engine only serves
            tensors.
        labels: class names by id; None if unknown.
        num_classes: number of classes; None if unknown.
        makes_images: True if the model generates a new image, and processes a large image tile by
            tile; False if the model processes each image as a whole.
        words: text encoder of a model that compares images with texts, such as CLIP; None for other
            models.

    Example:
        with Engine.open(Path("repository/yolov8n/1")) as engine:
            pixels = decode_image(Path("bus.jpg").read_bytes()).pixels
            found = engine.detect(pixels, PredictOptions(conf=0.5))
            print(found.boxes, found.scores, found.class_ids)
    """

    def __init__(self, card: EngineCard, session: Session, words: Words | None = None) -> None:
        self.card = card
        self.session = session
        session.inputs = sort_like(session.inputs, card.inputs)
        session.outputs = sort_like(session.outputs, card.outputs)
        self.words = words
        self.images = session if isinstance(session, ImageSession) else None
        self.labels = card.labels
        self._sizes: dict[tuple[int, int], Engine] = {}
        self.preprocessor = None
        inputs = card.inputs
        if (spec := card.preprocess) is not None:
            self.preprocessor = Preprocessor(spec.largest)
            if spec.step:
                inputs = _set_sides(inputs, self.preprocessor.spec)
        self.head = None
        self.num_classes = None if card.labels is None else len(card.labels)
        if card.family is not None:
            found = Recognition(
                card.family,
                card.reason,
                card.task,
                card.num_classes,
                card.head_outputs,
                skeleton=card.skeleton,
            )
            if not card.head_outputs:
                found = recognise(card.inputs, card.outputs, card.metadata, card.family)
            self.head = open_head(found, inputs)
            self.num_classes = found.num_classes or self.num_classes
        reason = "" if self.head else card.reason
        self._vocabulary = Vocabulary(self.labels, card.skeleton, reason)
        pictures = self.head is not None and self.head.task == "image"
        self.makes_images = pictures and spec is not None and spec.fit == "letterbox"

    @classmethod
    def open(
        cls,
        folder: Path,
        choice: PlainChoice | None = None,
        *,
        threads: int | None = None,
        streams: int | None = None,
        allow_code: bool = False,
    ) -> Self:
        """Open a version directory (repository/name/version).

        Args:
            folder: version directory with a card.json, or a plain Triton directory that has only an
                engine file.
            choice: options for a directory without a card. With a card, they have no effect.
            threads: number of CPU cores for one call; None means all usable cores.
            streams: number of parallel calls that share the cores; None means one per core.
            allow_code: allow Fovea to import a Python file with a user's own head from the
                directory.

        Returns:
            The engine. Close it after use, or use it as a context manager.

        Raises:
            NotFound: the directory has no engine.
            InvalidModel: the card or the engine is damaged.
            InvalidOption: the directory has a head as Python code, and `allow_code` is False.
            BackendUnavailable: the runtime is not installed, or the engine was built for another
                version of TensorRT, another GPU, or a CPU with other instruction sets.
        """
        if not (folder / CARD_FILE).exists():
            card, session = open_plain(folder, choice, threads=threads, streams=streams)
            return cls(card, session, own_words(folder, card, session))
        card = EngineCard.read(folder / CARD_FILE)
        load_head_of(folder, card, allow_code=allow_code)
        session = open_built(folder, card, threads, streams)
        return cls(card, session, open_words(folder, card, threads, streams))

    def at(self, size: tuple[int, int]) -> Engine:
        """Return an engine for one input size (height, width) in pixels.

        The returned engine shares the session of this engine, and must not be closed separately. It
        is cached.
        """
        found = self._sizes.get(size)
        if found is None:
            assert self.card.preprocess is not None, "the model takes images"
            spec = self.card.preprocess.at(size)
            card = replace(self.card, preprocess=spec, inputs=_set_sides(self.card.inputs, spec))
            found = self._sizes.setdefault(size, Engine(card, self.session, self.words))
        return found

    @property
    def largest(self) -> Engine:
        """Return the engine for the largest input size.

        Most engines have only one input size. They return themselves.
        """
        spec = self.card.preprocess
        return self.at((spec.height, spec.width)) if spec is not None and spec.step else self

    def for_image(self, pixels: NDArray[np.uint8]) -> Engine:
        """Return the engine for the smallest input size that can hold an image.

        `pixels` is uint8 [height, width, 3].
        """
        spec = self.card.preprocess
        if spec is None or not spec.step:
            return self
        height, width = pixels.shape[:2]
        return self.at(least_size(spec, width, height))

    @property
    def rows(self) -> int:
        """Return the largest number of images in one call, at least 1."""
        return max(1, self.session.max_batch)

    def resolve(self, options: PredictOptions) -> PredictOptions:
        """Return the options with class names replaced by class ids.

        If the options have `labels`, this method computes their embeddings and stores them in a
        cache. This can take several seconds.

        Raises:
            InvalidOption: a class is unknown, or an option has no effect for the task.
            NotFinite: an embedding is NaN or infinite.
            QueueFull: the text encoder has too many waiting texts.
        """
        task = "tensors" if self.head is None else self.head.task
        check_effect(options, self.card.name, task)
        if options.labels is None:
            return resolve_classes(options, self.labels, self.card.name, self.num_classes)
        words = self.require_words()
        if task != "embed" and not words.finds:
            raise InvalidOption(f"model '{self.card.name}' does not accept labels: leave them out")
        words.matrix(options.labels)
        return resolve_classes(options, options.labels, self.card.name, len(options.labels))

    def vocabulary(self, texts: tuple[str, ...] | None = None) -> Vocabulary:
        """Return the class names for the results.

        `texts` are the `labels` of a request; they replace the model's own class names.
        """
        return replace(self._vocabulary, labels=texts) if texts else self._vocabulary

    def require_words(self) -> Words:
        """Return the text encoder.

        Raises:
            InvalidOption: the model has no text encoder.
        """
        if self.words is None:
            raise InvalidOption(
                f"model '{self.card.name}' does not accept texts: send only images, or use a "
                "model such as CLIP that was built with `fovea build --tokenizer`"
            )
        return self.words

    def predict(
        self,
        pixels: NDArray[np.uint8],
        options: PredictOptions = _DEFAULTS,
        *,
        alone: bool = True,
    ) -> TaskResult:
        """Run the engine on one image.

        Args:
            pixels: uint8 [height, width, 3], RGB, upright.
            options: options of the results, e.g. `conf`.
            alone: True if no other call runs at the same time; see `Session.infer`.

        Returns:
            The result of the task, with coordinates in pixels of the image.

        Raises:
            UnsupportedModel: the head is unknown; use `session.infer`.
            InvalidOption: a class is unknown, or an option has no effect for the task.
            NotFinite: the outputs are NaN or infinite for this image.
        """
        if self.head is None or self.preprocessor is None:
            raise UnsupportedModel(f"{self.card.name} serves tensors only: {self.card.reason}")
        options = self.resolve(options)
        if options.tile is not None:
            return self._predict_tiles(pixels, options, alone)
        if self.makes_images:
            return self._predict_mosaic(pixels, options, alone)
        return self._predict_whole(pixels, options, alone)

    def mosaic(self, size: tuple[int, int]) -> Mosaic:
        """Return the tiling of an image for an image-to-image model.

        `size` is the (height, width) of the image in pixels.
        """
        spec = self.card.preprocess
        assert spec is not None, "the model takes images"
        return Mosaic(size, (spec.height, spec.width))

    def decode(self, outputs: Mapping[str, Array], row: int, options: PredictOptions) -> TaskResult:
        """Decode the outputs for one image of a batch.

        Args:
            outputs: name of each output -> its array [rows, ...].
            row: index of the image in the batch.
            options: options of the results, e.g. `conf`.

        Returns:
            The result, with coordinates in pixels of the model's input.

        Raises:
            NotFinite: the outputs are NaN or infinite. Without this check, the head would ignore
                them and return an empty result.
        """
        assert self.head is not None, "the caller has checked it"
        if (broken := self.head.unsound(outputs, row)) is not None:
            raise NotFinite(
                f"{broken} of {self.card.name} is NaN or infinite for this image, so it "
                "cannot be decoded: build the model with --precision fp32 or another --backend, "
                "and check it on such images with --images (/v2 returns the tensors unchanged)"
            )
        found = self.head.decode(outputs, row, options)
        if options.labels is not None and isinstance(found, Embedding):
            return self.require_words().classes(found, options)
        spec = self.card.preprocess
        return found if spec is None else found.in_rgb(spec.channels)

    def _predict_whole(
        self, pixels: NDArray[np.uint8], options: PredictOptions, alone: bool
    ) -> TaskResult:
        engine = self.for_image(pixels)
        outputs, back = engine._run(pixels, options, alone)
        return engine.decode(outputs, 0, options).to_source(back)

    def _predict_mosaic(
        self, pixels: NDArray[np.uint8], options: PredictOptions, alone: bool
    ) -> NewImage:
        mosaic, found = self.mosaic((pixels.shape[0], pixels.shape[1])), list[NewImage]()
        for number, tiles in enumerate(mosaic.rows):
            parts = [self._predict_whole(mosaic.cut(pixels, t), options, alone) for t in tiles]
            found = [part for part in parts if isinstance(part, NewImage)]
            if mosaic.tiled:
                mosaic.add(number, found)
        return mosaic.picture(found, pixels)

    def _predict_tiles(
        self, pixels: NDArray[np.uint8], options: PredictOptions, alone: bool
    ) -> TaskResult:
        size = pixels.shape[0], pixels.shape[1]
        on_tile = replace(options, tile=None, overlap=_DEFAULTS.overlap)
        return join_tiles(
            [
                (tile, self.detect(np.ascontiguousarray(crop(pixels, tile)), on_tile, alone=alone))
                for tile in cut(options, size)
            ],
            size,
            options,
        )

    def detect(
        self,
        pixels: NDArray[np.uint8],
        options: PredictOptions = _DEFAULTS,
        *,
        alone: bool = True,
    ) -> Detections:
        """Detect the objects in one image.

        `predict` describes the arguments and further errors.

        Returns:
            The detections, with coordinates in pixels of the image.

        Raises:
            UnsupportedModel: the model is not a detector.
        """
        found = self.predict(pixels, options, alone=alone)
        if not isinstance(found, Detections):
            raise UnsupportedModel(
                f"{self.card.name} does not detect objects: its task is {self.card.task}"
            )
        return found

    def outputs_of(self, pixels: NDArray[np.uint8], *, alone: bool = True) -> dict[str, Array]:
        """Return the raw outputs for an image: uint8 [height, width, 3], RGB, upright.

        Each output has the shape [1, ...], except outputs without a batch dimension, e.g. [k, 6]
        for k boxes. `Session.infer` describes `alone`.
        """
        return self.for_image(pixels)._run(pixels, _DEFAULTS, alone)[0]

    def _run(
        self, pixels: NDArray[np.uint8], options: PredictOptions, alone: bool
    ) -> tuple[dict[str, Array], LetterboxMap]:
        if self.preprocessor is None:
            raise UnsupportedModel(
                f"{self.card.name} does not accept images: use session.infer with tensors"
            )
        if self.images is not None:
            image, back = self.images.place(pixels)
            return self.images.infer_images([image]), back
        batch, back = self.preprocessor.row(pixels)
        return self.infer(batch, options, alone=alone), back

    def infer(self, rows: Array, options: PredictOptions, *, alone: bool) -> dict[str, Array]:
        """Return the raw outputs for a batch of preprocessed images [n, ...].

        All images of a batch share `options.labels`. An open-vocabulary detector detects these
        classes; other models ignore them.
        """
        feeds = self.feeds(rows)
        if options.labels is None or self.words is None or not self.words.finds:
            return self.session.infer(feeds, alone=alone)
        return self.words.infer(feeds, options.labels, alone=alone)

    def feeds(self, rows: Array) -> dict[str, Array]:
        """Return the arrays for all inputs of the model, given preprocessed images [n, ...].

        Some models have inputs besides the image, e.g. the size of the image.
        """
        return source_feeds(self.session.inputs, rows)

    def close(self) -> None:
        """Release the memory of the session and of the text encoder.

        A second call has no effect.
        """
        self.session.close()
        if self.words is not None:
            self.words.close()


def open_built(
    folder: Path, card: EngineCard, threads: int | None = None, streams: int | None = None
) -> Session:
    """Verify the files of a version with a card, and open its engine.

    Raises:
        InvalidModel: a file differs from the card's SHA-256, or the runtime cannot read it.
        BackendUnavailable: the runtime is not installed, or the engine does not fit this machine.
    """
    if (reason := mismatch(card)) is not None:
        kept = get_backend(card.backend).kept_file
        cure = "run `fovea serve --rebuild`, or " if kept else ""
        raise BackendUnavailable(f"{reason}: {cure}build it again with `fovea build`")
    for name, digest in card.files.items():
        if file_sha256(folder / name) != digest:
            raise InvalidModel(
                f"{folder / name} was changed after the build (its sha256 differs from the "
                "card's): build the engine again"
            )
    return open_session(
        card.backend,
        folder / next(iter(card.files)),
        max_batch=card.max_batch,
        threads=threads,
        streams=streams,
        plugins=card.builder.plugins if card.builder else (),
        precision=card.precision,
    )


def _set_sides(inputs: Sequence[TensorSpec], spec: PreprocessSpec) -> tuple[TensorSpec, ...]:
    """Return the inputs with the image's sides set to the spec's. The image is the first input."""
    image, *rest = inputs
    return replace(image, shape=(*image.shape[:-3], *spec.row_shape)), *rest
