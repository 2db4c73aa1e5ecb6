"""Decodes embeddings, e.g. for re-identification, faces and similarity search."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from fovea_engines.heads.base import STRETCHED, STRETCHED_MOSTLY, Head
from fovea_engines.heads.signature import OTHERS, Fit, Signature, Strength
from fovea_engines.results.embedding import Embedding
from fovea_engines.results.options import PredictOptions
from fovea_engines.session import Array, TensorSpec

# Pattern of output names that exporters give to embeddings. `emb_bbox` and `feature_classifier` do
# not match, because they are not embeddings.
_NAMED = re.compile(
    r"(?:^|[_./-])(?:embed|embeds|emb|embedding|embeddings|features?|descriptors?|re_?id"
    r"|pooler_output|fc1)(?:[_./-]?\d+)?$",
    re.I,
)
_MIN = 2
# Smallest length of an embedding that is recognised only by the name of the output.
_PLAUSIBLE = 16
# Tolerance for a sum of probabilities: a float16 softmax may differ from 1 by this much.
_ROUNDING = 0.02


class EmbeddingHead(Head):
    """Decodes an embedding [batch, n] or [batch, n, 1, 1]. Other outputs are ignored."""

    family = "embedding"
    task = "embed"
    nameless = True
    preprocess = STRETCHED
    guessed = STRETCHED_MOSTLY

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for one output that has an embedding's shape and name.

        The name is needed, because classifiers have outputs of the same shape.
        """
        vectors = [tensor for tensor in signature.outputs if _is_vector(tensor)]
        named = [tensor for tensor in vectors if _is_named(tensor)]
        found = named or vectors
        if len(found) != 1 or not (named or len(signature.outputs) == 1):
            return OTHERS
        if signature.num_labels is not None:
            return (
                f"the metadata or --labels name {signature.num_labels} classes, and embeddings "
                "have none"
            )
        why = f"{found[0].name} has {found[0].shape[1]} numbers for an image"
        outputs = (found[0].name,)
        if signature.task is not None:
            return Fit(outputs, None, f"{why}, and the task is embed", Strength.METADATA)
        if named:
            return Fit(outputs, None, f"{why}, and a usual name of embeddings", Strength.NAMES)
        unsure = "if it is an embedding, choose --head embedding"
        return Fit(outputs, None, why, Strength.RARE, unsure=unsure)

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Return why the outputs cannot come from this head family, or None if they can.

        They cannot if numbers are probabilities that add up to 1, as in a classifier.
        """
        [name] = self.outputs
        numbers = outputs[name].astype(np.float32)
        if not len(numbers):
            return f"{name} is empty"
        if numbers.min() >= 0 and abs(float(numbers[0].sum()) - 1) <= _ROUNDING:
            return f"the numbers of {name} add up to 1, as after a softmax"
        return None

    def unsound(self, outputs: Mapping[str, Array], row: int) -> str | None:
        """Return the name of the output if any of its numbers is NaN or infinite.

        Other heads drop such numbers, but an embedding needs all its dimensions.
        """
        [name] = self.outputs
        # Take a slice and not an index: if the first axis of the output is not the batch, the row
        # may not exist, and an index would raise an error.
        return None if np.isfinite(outputs[name][row : row + 1]).all() else f"output {name}"

    def decode(self, outputs: Mapping[str, Array], row: int, options: PredictOptions) -> Embedding:
        """Return the embedding of one image."""
        return Embedding(outputs[self.outputs[0]][row].astype(np.float32).ravel())


def _is_named(tensor: TensorSpec) -> bool:
    long = tensor.shape[1] == -1 or tensor.shape[1] >= _PLAUSIBLE
    return long and _NAMED.search(tensor.name) is not None


def _is_vector(tensor: TensorSpec) -> bool:
    return (
        len(tensor.shape) >= 2
        and tensor.shape[2:] in ((), (1, 1))
        and (tensor.shape[1] >= _MIN or tensor.shape[1] == -1)
        and tensor.dtype.startswith("float")
    )


HEADS: tuple[type[Head], ...] = (EmbeddingHead,)
