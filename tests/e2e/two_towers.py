"""A network of images and texts of a few kilobytes, and what it computes."""

from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, save
from tests.e2e.results import averaged
from tests.engines.tiny import constant
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

NUMBERS = 16
LENGTH = 6
VOCABULARY = ("[PAD]", "[UNK]", "a", "photo", "of", "red", "green", "blue", "cat", "dog", "7")
IMAGE, TEXT = "pixel_values", ["input_ids", "attention_mask"]


def _table():
    return np.random.default_rng(7).normal(size=(len(VOCABULARY), NUMBERS)).astype(np.float32)


def tokenizer(path: Path) -> Path:
    """Write a tokenizer of eleven words."""
    ids = {word: at for at, word in enumerate(VOCABULARY)}
    made = Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))
    made.normalizer = normalizers.Lowercase()
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.save(str(path))
    return path


def image_vectors(shares) -> np.ndarray:
    """The vectors of images of one colour each, [n, 16], for shares [n, 3]."""
    return _unit(np.atleast_2d(shares) @ averaged(NUMBERS, 0)[2])


def text_vectors(*texts: str) -> np.ndarray:
    """The vectors of texts, [n, 16]: means over their words."""
    words = [text.lower().split()[:LENGTH] for text in texts]
    ids = [[VOCABULARY.index(w) if w in VOCABULARY else 1 for w in each] for each in words]
    return _unit(np.stack([_table()[each].mean(0) for each in ids]))


def _unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def two_towers(
    folder: Path, *, scale: float = 20.0, bias: float | None = None, halves: bool = False
) -> Path:
    """Write model.onnx as Optimum does, and tokenizer.json beside it; or image.onnx and text.onnx.

    With `bias` it is of SigLIP's kind.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer(folder / "tokenizer.json")
    seen, weights, _ = averaged(NUMBERS, 0)
    seen[0].input[0] = IMAGE
    seen.append(helper.make_node("LpNormalization", ["mixed"], ["image_embeds"], axis=1))
    node = helper.make_node
    read = [
        node("Gather", ["table", "input_ids"], ["words"]),
        node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        node("Unsqueeze", ["mask", "last"], ["column"]),
        node("Mul", ["words", "column"], ["masked"]),
        node("ReduceSum", ["masked", "one"], ["summed"], keepdims=0),
        node("LpNormalization", ["summed"], ["text_embeds"], axis=1),
    ]
    told = [constant("table", _table()), constant("last", np.array([2]))]
    told.append(constant("one", np.array([1])))
    pixels = [(IMAGE, TensorProto.FLOAT, ["image_batch", 3, 16, 16])]
    tokens = [(name, TensorProto.INT64, ["text_batch", "length"]) for name in TEXT]
    image_end = ("image_embeds", TensorProto.FLOAT, ["image_batch", NUMBERS])
    text_end = ("text_embeds", TensorProto.FLOAT, ["text_batch", NUMBERS])
    if halves:
        _save(folder / "text.onnx", read, tokens, [text_end], told)
        return _save(folder / "image.onnx", seen, pixels, [image_end], weights)
    joined = [
        node("Transpose", ["image_embeds"], ["across"]),
        node("MatMul", ["text_embeds", "across"], ["cosines"]),
        node("Mul", ["cosines", "scale"], ["scaled"]),
        node("Add", ["scaled", "bias"], ["logits_per_text"]),
        node("Transpose", ["logits_per_text"], ["logits_per_image"]),
    ]
    told += [constant("scale", np.float32(scale)), constant("bias", np.float32(bias or 0))]
    logits = [
        ("logits_per_image", TensorProto.FLOAT, ["image_batch", "text_batch"]),
        ("logits_per_text", TensorProto.FLOAT, ["text_batch", "image_batch"]),
    ]
    return _save(
        folder / "model.onnx",
        seen + read + joined,
        tokens[:1] + pixels + tokens[1:],
        [*logits, text_end, image_end],
        weights + told,
    )


def reader(folder: Path) -> Path:
    """Write model.onnx as exporters of BERT do, with a vector for each token, and its tokenizer."""
    folder.mkdir(parents=True)
    tokenizer(folder / "tokenizer.json")
    node = helper.make_node
    nodes = [
        node("Gather", ["table", "input_ids"], ["words"]),
        node("Gather", ["zeros", "token_type_ids"], ["kinds"]),
        node("Add", ["words", "kinds"], ["last_hidden_state"]),
    ]
    weights = [constant("table", _table()), constant("zeros", np.zeros((2, 1), np.float32))]
    tokens = [(name, TensorProto.INT64, ["batch", "length"]) for name in [*TEXT, "token_type_ids"]]
    end = ("last_hidden_state", TensorProto.FLOAT, ["batch", "length", NUMBERS])
    return _save(folder / "model.onnx", nodes, tokens, [end], weights)


def _save(path, nodes, inputs, outputs, weights) -> Path:
    ends = ([helper.make_tensor_value_info(*each) for each in some] for some in (inputs, outputs))
    graph = helper.make_graph(nodes, "two towers", *ends, weights)
    opset = [helper.make_opsetid("", 17)]
    save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)
    return path
