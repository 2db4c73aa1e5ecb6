"""Turns texts into vectors in the space of a model's images, and images into classes by them."""

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
"""Key of the metadata of a model that reads texts."""
TEXT_FILE: Final = "text.onnx"
TOKENIZER_FILE: Final = "tokenizer.json"
PROMPTS_FILE: Final = "prompts.onnx"
PROMPTS: Final = "txt_feats"
"""Input of detectors that find what texts say: their vectors, [1, n, d], of length 1."""

_KEPT = 4096  # vectors of 768 numbers take 12 MB
_KEPT_LISTS = 64
LONGEST = 512
"""Most tokens of a text."""
MAX_ROWS = 16
"""Most texts that a network reads in one call."""

_MAX_WAITING = 64

Vectors = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class WordsSpec:
    """The half of a model that reads texts.

    Attributes:
        length: tokens of every text, which is cut or padded to them; 0 for as many as the longest
            of a call has.
        pad: token that it is padded with.
        output: name of its vectors, [n, d], or of one for each token, [n, length, d].
        scale: a cosine times this, plus the bias, is a logit.
        bias: None where the model was trained with a softmax over texts; else with sigmoids.
        tower: sha256 of its network, and so is `tokenizer` of that file.
        pooling: of vectors of tokens: their mean, or the first one ("cls").
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
        """Return the spec as the metadata has it."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def of(cls, metadata: Mapping[str, str]) -> Self | None:
        """Read the spec of a model; None where it reads no texts."""
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
    """Return what reads texts with a network of texts alone, such as BERT; None for another.

    Its metadata may have `pooling`. Raises as `Tokens`.
    """
    if not all(map(takes_tokens, session.inputs)):
        return None
    floats = [each for each in session.outputs if each.dtype.startswith("float")]
    # What BERT calls pooled is trained to tell which sentence follows.
    named = [each for each in floats if len(each.shape) == 2 and "embed" in each.name]
    output = next(iter(named or sorted(floats, key=lambda each: -len(each.shape))), None)
    if output is None or len(output.shape) not in (2, 3):
        return None
    length = max(0, session.inputs[0].shape[1])
    tokens = Tokens(tokenizer, length)
    pooling = metadata.get("pooling", "mean")
    return tokens, WordsSpec(length, tokens.pad, output.name, 1.0, None, pooling=pooling)


class Tokens:
    """Texts to the inputs of a network, by a tokenizer of Hugging Face's format.

    Attributes:
        pad: token that texts are padded with; if it is not given, what the tokenizer says, or the
            file of transformers beside it.

    Raises:
        InvalidModel: on construction, when the file is none.
        ModuleNotFoundError: on construction, when the package `tokenizers` is not installed.
    """

    def __init__(self, file: Path, length: int, pad: int | None = None) -> None:
        from tokenizers import Tokenizer

        try:
            self._tokenizer: Tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:  # it raises no narrower one
            raise InvalidModel(f"{file} is no tokenizer.json: {error}") from error
        self.pad = self._own_pad(file) if pad is None else pad
        declared = read_tokenizer_config(file).get("model_max_length")
        # Where there is no limit, transformers writes a number of thirty digits.
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
        """Return ids, mask and types of texts, [n, length], for the inputs that take them."""
        encoded = self._tokenizer.encode_batch(list(texts))
        rows = {
            "mask": [each.attention_mask for each in encoded],
            "type": [each.type_ids for each in encoded],
            "ids": [each.ids for each in encoded],
        }
        return {spec.name: np.array(rows[token_kind(spec)], spec.dtype) for spec in inputs}


def token_kind(spec: TensorSpec) -> Literal["ids", "mask", "type"]:
    """Return what an input of a network of texts takes, by its name."""
    for kind in ("mask", "type"):
        if kind in spec.name:
            return kind
    return "ids"


def takes_tokens(spec: TensorSpec) -> bool:
    """Return whether an input is for tokens: whole numbers, [batch, length]."""
    return spec.dtype in ("int64", "int32") and len(spec.shape) == 2


def read_tokenizer_config(tokenizer: Path) -> dict[str, Any]:
    """Return the fields of tokenizer_config.json beside a tokenizer; none where it is not there."""
    try:
        config = json.loads(tokenizer.with_name("tokenizer_config.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return config if isinstance(config, dict) else {}


class Words(Closing):
    """The vectors of texts, of which the last are kept; safe from any number of threads.

    Attributes:
        detector: finds what texts say; None of models that compare an image as a whole.
        computed: number of texts that the network has read.
        found: number of texts whose vector was there already.
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
        """Return the vector of each text.

        Raises:
            InvalidOption: there is no text, or too many, or one is empty or too long.
            QueueFull: too many others wait for the network.
            NotFinite: it computes no numbers.
            ModelNotReady: it is closed.
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
        """True if it finds what texts say, and does not compare an image as a whole."""
        return self.detector is not None

    def infer(
        self, feeds: dict[str, Array], texts: tuple[str, ...], *, alone: bool
    ) -> dict[str, Array]:
        """Run the detector that finds what texts say."""
        assert self.detector is not None, "the caller has checked it"
        return self.detector.infer(feeds | {PROMPTS: self.matrix(texts)[None]}, alone=alone)

    def classes(self, found: Embedding, options: PredictOptions) -> Classes:
        """Rank the texts of a request by how much an image is like them."""
        assert options.labels is not None, "the caller has checked it"
        cosines = self.matrix(options.labels) @ found.unit
        logits = self.spec.scale * cosines + (self.spec.bias or 0)
        if self.spec.bias is not None:
            return best_classes((1 / (1 + np.exp(-logits))).astype(np.float32), options)
        powers = np.exp(logits - logits.max())
        return best_classes((powers / powers.sum()).astype(np.float32), options)

    def close(self) -> None:
        """Release the network's memory, once it has read. Calling it again does nothing."""
        with self._computing:
            self._closed = True
            self._session.close()
            if self.detector is not None:
                self.detector.close()

    def matrix(self, texts: tuple[str, ...]) -> Vectors:
        """Return the vectors of length 1 of a list, [n, d]; raises as `read`."""
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
                    f"{self._waiting} requests wait for text embeddings: send again later. Cached "
                    "texts are answered at once",
                    retry_after_s=1.0,
                )
            self._waiting += 1
        try:
            # One at a time: a second one would take the cores of images.
            with self._computing:
                if self._closed:
                    raise ModelNotReady("the model was unloaded meanwhile: send the texts again")
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
