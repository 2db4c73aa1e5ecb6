"""Computes embeddings of texts, and classifies images by them.

The embeddings of texts and images have the same dimensions, so that they can be compared.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, Literal, Self

import numpy as np
from numpy.typing import NDArray

from fovea_engines.results.classes import Classes, best_classes
from fovea_engines.results.embedding import Embedding
from fovea_engines.results.options import PredictOptions, check_texts
from fovea_engines.session import Array, Closing, Session, TensorSpec
from fovea_preprocess.errors import InvalidModel, ModelNotReady, NotFinite, QueueFull

if TYPE_CHECKING:
    from tokenizers import Tokenizer

WORDS: Final = "fovea.words"
"""Metadata key that holds the `WordsSpec` of a model that reads texts, as JSON."""
TEXT_FILE: Final = "text.onnx"
TOKENIZER_FILE: Final = "tokenizer.json"
PROMPTS_FILE: Final = "prompts.onnx"
PROMPTS: Final = "txt_feats"
"""Name of the input of open-vocabulary detectors for text embeddings, [1, n, d], of length 1."""

_KEPT = 4096  # largest number of embeddings in the cache: 12 MB if they have 768 dimensions
_KEPT_LISTS = 64
LONGEST = 512
"""Largest number of tokens of a text."""
MAX_ROWS = 16
"""Largest number of texts that a model reads in one call."""

_MAX_WAITING = 64

Vectors = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class WordsSpec:
    """Describes the text encoder of a model.

    Attributes:
        length: number of tokens of every text. Texts are cut or padded to this number. If it is 0,
            texts are padded to the longest text of a call.
        pad: id of the padding token.
        output: name of the output. It is embeddings of texts [n, d], or embeddings of tokens
            [n, length, d].
        scale: factor of the cosine in a logit. A logit is the cosine times `scale`, plus `bias`.
        bias: bias of a model that was trained with sigmoids; None if the model was trained with a
            softmax over texts.
        tower: SHA-256 of the text encoder's file.
        tokenizer: SHA-256 of the tokenizer's file.
        pooling: method that combines the embeddings of tokens: "mean" is their mean, and "cls" is
            the embedding of the first token.
    """

    length: int
    pad: int
    output: str
    scale: float
    bias: float | None
    tower: str = ""
    tokenizer: str = ""
    pooling: str = "mean"

    @property
    def text(self) -> str:
        """Return the spec as JSON, in the form of the metadata."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def of(cls, metadata: Mapping[str, str]) -> Self | None:
        """Read the spec from a model's metadata. If the model does not read texts, return None.

        Raises:
            InvalidModel: the metadata is damaged.
        """
        if (text := metadata.get(WORDS)) is None:
            return None
        try:
            return cls(**json.loads(text))
        except (TypeError, ValueError) as error:
            raise InvalidModel(
                f"metadata {WORDS} is damaged ({error}): build the model again"
            ) from error


def words_of_texts(
    tokenizer: Path, session: Session, metadata: Mapping[str, str]
) -> tuple[Tokens, WordsSpec] | None:
    """Return the tokenizer and the spec of a model that takes only texts, such as BERT.

    If the model has other inputs or outputs, return None. The metadata may contain `pooling`.
    `Tokens` describes the errors.
    """
    if not all(map(takes_tokens, session.inputs)):
        return None
    floats = [each for each in session.outputs if each.dtype.startswith("float")]
    # Use an output with one row per text if its name contains "embed". Otherwise, prefer the
    # embeddings of tokens: BERT's pooled output also has one row per text, but it is trained for
    # the prediction of the next sentence.
    named = [each for each in floats if len(each.shape) == 2 and "embed" in each.name]
    output = next(iter(named or sorted(floats, key=lambda each: -len(each.shape))), None)
    if output is None or len(output.shape) not in (2, 3):
        return None
    length = max(0, session.inputs[0].shape[1])
    tokens = Tokens(tokenizer, length)
    pooling = metadata.get("pooling", "mean")
    return tokens, WordsSpec(length, tokens.pad, output.name, 1.0, None, pooling=pooling)


class Tokens:
    """Converts texts to model inputs, with a tokenizer in the format of Hugging Face.

    Attributes:
        pad: id of the padding token. By default it is read from the tokenizer's file, or from
            tokenizer_config.json beside it.

    Raises:
        InvalidModel: the file is not a tokenizer. The constructor raises this error.
        ModuleNotFoundError: the package `tokenizers` is not installed. The constructor raises
            this error.
    """

    def __init__(self, file: Path, length: int, pad: int | None = None) -> None:
        from tokenizers import Tokenizer

        try:
            self._tokenizer: Tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:  # `tokenizers` raises only this class
            raise InvalidModel(f"{file} is not a valid tokenizer.json: {error}") from error
        self.pad = self._own_pad(file) if pad is None else pad
        declared = read_tokenizer_config(file).get("model_max_length")
        # If a tokenizer has no limit, transformers writes a number of thirty digits as its limit.
        most = declared if isinstance(declared, int) and 1 <= declared <= LONGEST else LONGEST
        self._tokenizer.enable_truncation(length or most)
        self._tokenizer.enable_padding(length=length or None, pad_id=self.pad, direction="right")

    def _own_pad(self, file: Path) -> int:
        padding: dict[str, Any] = self._tokenizer.padding or {}
        token = read_tokenizer_config(file).get("pad_token")
        if isinstance(token, dict):
            token = token.get("content")
        found = self._tokenizer.token_to_id(token) if isinstance(token, str) else None
        return int(padding.get("pad_id", found or 0))

    def feeds(self, texts: Sequence[str], inputs: Sequence[TensorSpec]) -> dict[str, Array]:
        """Return the inputs of the model for texts: token ids, masks and types, [n, length]."""
        encoded = self._tokenizer.encode_batch(list(texts))
        rows = {
            "mask": [each.attention_mask for each in encoded],
            "type": [each.type_ids for each in encoded],
            "ids": [each.ids for each in encoded],
        }
        return {spec.name: np.array(rows[token_kind(spec)], spec.dtype) for spec in inputs}


def token_kind(spec: TensorSpec) -> Literal["ids", "mask", "type"]:
    """Return the kind of values that an input of a text encoder takes. Its name determines this."""
    for kind in ("mask", "type"):
        if kind in spec.name:
            return kind
    return "ids"


def takes_tokens(spec: TensorSpec) -> bool:
    """Return whether an input takes tokens: integers, [batch, length]."""
    return spec.dtype in ("int64", "int32") and len(spec.shape) == 2


def read_tokenizer_config(tokenizer: Path) -> dict[str, Any]:
    """Return the fields of tokenizer_config.json beside a tokenizer.

    If the file is missing, return an empty dict.
    """
    try:
        config = json.loads(tokenizer.with_name("tokenizer_config.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return config if isinstance(config, dict) else {}


class Words(Closing):
    """Computes embeddings of texts and caches the latest embeddings. All methods are thread-safe.

    Attributes:
        spec: description of the text encoder.
        detector: session of an open-vocabulary detector; None if the model compares whole images.
        computed: number of texts that the model has read.
        found: number of texts whose embedding was in the cache.
    """

    def __init__(
        self, tokens: Tokens, session: Session, spec: WordsSpec, detector: Session | None = None
    ) -> None:
        self.spec = spec
        self.detector = detector
        self.computed = self.found = 0
        self._tokens = tokens
        self._session = session
        self._kept: OrderedDict[str, Embedding] = OrderedDict()
        self._lists: OrderedDict[tuple[str, ...], Vectors] = OrderedDict()
        self._lock, self._computing = Lock(), Lock()
        self._waiting = 0
        self._closed = False

    def read(self, texts: Sequence[str]) -> list[Embedding]:
        """Return the embedding of each text, from the cache if possible.

        Raises:
            InvalidOption: there are no texts or too many texts, or a text is blank or too long.
            QueueFull: too many other requests wait for the text encoder.
            NotFinite: an embedding contains NaN or infinity.
            ModelNotReady: the model was unloaded.
        """
        check_texts(texts)
        with self._lock:
            missing = [text for text in dict.fromkeys(texts) if text not in self._kept]
            self.found += len(texts) - len(missing)
            made = {text: self._kept[text] for text in texts if text in self._kept}
            for text in made:
                self._kept.move_to_end(text)
        if missing:
            made |= self._compute(missing)
        return [made[text] for text in texts]

    @property
    def finds(self) -> bool:
        """True if the model is an open-vocabulary detector; False if it compares whole images."""
        return self.detector is not None

    def infer(
        self, feeds: dict[str, Array], texts: tuple[str, ...], *, alone: bool
    ) -> dict[str, Array]:
        """Run the open-vocabulary detector on preprocessed images, for these texts."""
        assert self.detector is not None, "the caller has checked it"
        return self.detector.infer(feeds | {PROMPTS: self.matrix(texts)[None]}, alone=alone)

    def classes(self, found: Embedding, options: PredictOptions) -> Classes:
        """Rank the texts of a request by their similarity to an image.

        Args:
            found: embedding of the image.
            options: options of the request; `labels` are the texts.
        """
        assert options.labels is not None, "the caller has checked it"
        cosines = self.matrix(options.labels) @ found.unit
        logits = self.spec.scale * cosines + (self.spec.bias or 0)
        if self.spec.bias is not None:
            return best_classes((1 / (1 + np.exp(-logits))).astype(np.float32), options)
        powers = np.exp(logits - logits.max())
        return best_classes((powers / powers.sum()).astype(np.float32), options)

    def close(self) -> None:
        """Release the model's memory after the current call. A second call has no effect."""
        with self._computing:
            self._closed = True
            self._session.close()
            if self.detector is not None:
                self.detector.close()

    def matrix(self, texts: tuple[str, ...]) -> Vectors:
        """Return the embeddings of texts, float32 [n, d], of length 1. `read` lists the errors."""
        with self._lock:
            if (known := self._lists.get(texts)) is not None:
                self._lists.move_to_end(texts)
                return known
        made = np.stack([each.unit for each in self.read(texts)])
        with self._lock:
            self._lists[texts] = made
            if len(self._lists) > _KEPT_LISTS:
                self._lists.popitem(last=False)
        return made

    def _compute(self, texts: list[str]) -> dict[str, Embedding]:
        with self._lock:
            if self._waiting >= _MAX_WAITING:
                raise QueueFull(
                    f"{self._waiting} requests wait for text embeddings, which is the limit: send "
                    "the request again later. Texts whose embeddings are cached do not wait",
                    retry_after_s=1.0,
                )
            self._waiting += 1
        try:
            # Run only one call at a time. A second call would take CPU cores from requests with
            # images.
            with self._computing:
                if self._closed:
                    raise ModelNotReady(
                        "the model was unloaded during the request: send the texts again"
                    )
                starts = range(0, len(texts), self._rows)
                found = np.concatenate([self._run(texts[at : at + self._rows]) for at in starts])
        finally:
            with self._lock:
                self._waiting -= 1
        made = dict(zip(texts, map(Embedding, found), strict=True))
        with self._lock:
            self.computed += len(made)
            self._kept |= made
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return made

    @property
    def _rows(self) -> int:
        return 1 if self._session.inputs[0].shape[0] == 1 else MAX_ROWS

    def _run(self, texts: Sequence[str]) -> Vectors:
        feeds = self._tokens.feeds(texts, self._session.inputs)
        vectors: Vectors = self._session.infer(feeds)[self.spec.output].astype(np.float32)
        if vectors.ndim == 3 and self.spec.pooling == "cls":
            vectors = vectors[:, 0]
        elif vectors.ndim == 3:
            masks = [feeds[each.name] for each in self._session.inputs if "mask" in each.name]
            share = masks[0].astype(np.float32)[:, :, None] if masks else np.ones_like(vectors)
            vectors = (vectors * share).sum(1) / share.sum(1)
        if not np.isfinite(vectors).all():
            raise NotFinite(
                f"the embedding of '{texts[0][:60]}' or of another text in the request is NaN or "
                "infinite: leave the text out, or export the text encoder again"
            )
        return vectors
