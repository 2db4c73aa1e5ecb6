"""Prepares models of images and texts for a build.

Models like CLIP are split into an image encoder and a text encoder.

Detectors that accept text embeddings (YOLO-World, YOLOE) get default classes at build time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.helper import set_model_props
from onnx.utils import Extractor

from fovea_engines.backends.registry import CPU_BACKENDS, REFERENCE_BACKEND, open_session
from fovea_engines.build.plan import BuildPlan
from fovea_engines.clip.texts import (
    LONGEST,
    MAX_ROWS,
    PROMPTS,
    PROMPTS_FILE,
    TEXT_FILE,
    TOKENIZER_FILE,
    WORDS,
    Tokens,
    Words,
    WordsSpec,
    read_tokenizer_config,
    takes_tokens,
)
from fovea_engines.heads.metadata import labels_from_metadata
from fovea_engines.heads.signature import image_layout
from fovea_engines.onnx_graph.load import load
from fovea_engines.onnx_graph.plain_session import (
    cannot_load,
    cannot_run,
    onnxruntime_errors,
    open_plain,
)
from fovea_engines.onnx_graph.tensors import graph_inputs, graph_outputs, metadata_of
from fovea_engines.progress import Progress
from fovea_engines.repository.files import file_sha256
from fovea_engines.repository.locking import temporary_folder
from fovea_engines.session import Array, TensorSpec
from fovea_preprocess.errors import InvalidOption, UnsupportedModel

# Defaults of CLIP: the scale of its logits (the training limits the scale to this value), and the
# length of its texts in tokens.
_SCALE = 100.0
_LENGTH = 77
_LARGEST = (2 << 30) - (64 << 20)
# Largest difference between a model's logits and scale * cosine + bias that rounding in float32
# explains.
_ROUNDING = 1e-3
_CLIP: Mapping[str, Any] = {
    "fit": "center-crop",
    "resample": "bicubic",
    "channels": "RGB",
    "scale": 1 / 255,
    "mean": (0.48145466, 0.4578275, 0.40821073),
    "std": (0.26862954, 0.26130258, 0.27577711),
}
_SIGLIP: Mapping[str, Any] = {
    "fit": "stretch",
    "resample": "bicubic",
    "channels": "RGB",
    "scale": 1 / 255,
    "mean": (0.5, 0.5, 0.5),
    "std": (0.5, 0.5, 0.5),
}
# Texts to fit the scale and bias of logits. All their tokens differ, so that their cosines differ.
_TRIED = ("a photo of a cat", "red", "7 8 9 0", "the sea at night", "zebra crossing", "up", "Qx!")


class _Logits(NamedTuple):
    scale: float
    bias: float | None


@contextmanager
def halves(
    plan: BuildPlan, tokenizer: Path, progress: Progress
) -> Iterator[tuple[BuildPlan, Mapping[str, Path]]]:
    """Split a model of images and texts into its image encoder and its text encoder.

    Yields:
        The plan for the image encoder, and a mapping from the name of each file to publish beside
        its engine to the path of this file. If the model accepts only images, the unchanged plan
        and an empty mapping.

    Raises:
        InvalidOption: the plan has a tokenizer, but no text encoder.
        UnsupportedModel: the encoders cannot be separated, or do not fit each other.
        NotFound: a file does not exist.
        InvalidModel: a file cannot be read.
    """
    source = load(plan.source).proto
    if plan.text is None and not any(map(takes_tokens, graph_inputs(source))):
        if plan.tokenizer is not None:
            raise InvalidOption(
                "--tokenizer needs a text encoder, but this model does not accept texts: leave it "
                "out, or give the text encoder with --text"
            )
        yield plan, {}
        return
    with temporary_folder("halves") as folder:
        with progress.phase("halves"):
            made = _make_halves(plan, source, tokenizer, folder, progress)
        yield made, {TEXT_FILE: folder / TEXT_FILE, TOKENIZER_FILE: tokenizer}


def _make_halves(
    plan: BuildPlan,
    source: onnx.ModelProto,
    tokenizer: Path,
    folder: Path,
    progress: Progress,
) -> BuildPlan:
    if sum(len(tensor.raw_data) for tensor in source.graph.initializer) > _LARGEST:
        raise UnsupportedModel(
            "the model has more than 2 GB, the limit of one ONNX file: export it in float16, or "
            "export the two encoders to a file each, and give the text encoder as --text"
        )
    whole = source
    if plan.text is None:
        text, image = _cut_half(source, tokens=True), _cut_half(source, tokens=False)
    else:
        text, image = load(plan.text).proto, source
    output = vectors_of(text).name
    length = length_of(text, tokenizer)
    tokens = Tokens(tokenizer, length)
    onnx.save(text, folder / TEXT_FILE)
    read = _run(folder / TEXT_FILE, tokens.feeds(_TRIED, graph_inputs(text)), [output])[0]
    _check_vectors(read, vectors_of(image))
    logits = None if plan.text is not None else _find_logits(whole, image, text, tokens, folder)
    if logits is None:
        metadata = metadata_of(text)
        bias = float(metadata["logit_bias"]) if "logit_bias" in metadata else None
        logits = _Logits(float(metadata.get("logit_scale", _SCALE)), bias)
        if "logit_scale" not in metadata:
            progress.note(
                f"the model has no logits, so scores are softmax({_SCALE:g} * cosine), as in "
                "CLIP; to change this, set logit_scale and logit_bias in the text encoder's "
                "metadata"
            )
    spec = WordsSpec(
        length,
        tokens.pad,
        output,
        *logits,
        tower=file_sha256(folder / TEXT_FILE),
        tokenizer=file_sha256(tokenizer),
    )
    set_model_props(image, metadata_of(image) | {WORDS: spec.text})
    onnx.save(image, folder / "image.onnx")
    kind, usual = ("CLIP", _CLIP) if logits.bias is None else ("SigLIP", _SIGLIP)
    origin = f"the default of {kind}, because the model has a text encoder"
    return replace(
        plan,
        source=folder / "image.onnx",
        family="embedding",
        family_from="its image encoder",
        preprocess={**usual, **(plan.preprocess or {})},
        preprocess_from=f"{plan.preprocess_from}, and {origin}" if plan.preprocess else origin,
        text=None,
        tokenizer=None,
    )


def _cut_half(model: onnx.ModelProto, *, tokens: bool) -> onnx.ModelProto:
    """Return the part of a graph that computes embeddings from the tokens, or from the image."""
    inputs = [spec for spec in graph_inputs(model) if takes_tokens(spec) == tokens]
    names = [spec.name for spec in inputs]
    extractor = Extractor(model)
    others = {spec.name for spec in graph_inputs(model)}.difference(names)
    ends = [spec for spec in graph_outputs(model) if not _trace_inputs(model, spec.name) & others]
    output = _choose_vectors(ends, "texts" if tokens else "images")
    taken = _trace_inputs(model, output.name)
    part = extractor.extract_model([name for name in names if name in taken], [output.name])
    set_model_props(part, metadata_of(model))
    return part


def _trace_inputs(model: onnx.ModelProto, output: str) -> set[str]:
    """Return the names of all tensors on which an output depends, including inputs of the graph."""
    made = {name: node for node in model.graph.node for name in node.output}
    found: set[str] = set()
    left = [output]
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            left += made[name].input if name in made else ()
    return found


def vectors_of(model: onnx.ModelProto) -> TensorSpec:
    """Return the output of a text encoder or image encoder that has the embeddings.

    Raises:
        UnsupportedModel: no output, or more than one output, can have the embeddings.
    """
    return _choose_vectors(graph_outputs(model), "its input")


def _choose_vectors(outputs: Sequence[TensorSpec], of: str) -> TensorSpec:
    """Return the output with embeddings [batch, n].

    If several outputs have this form, their names decide. `of` describes the embeddings in the
    error message.
    """
    flat = [spec for spec in outputs if len(spec.shape) == 2 and spec.dtype.startswith("float")]
    named = [spec for spec in flat if "embed" in spec.name or "feature" in spec.name]
    found = named or flat
    if len(found) != 1:
        names = ", ".join(spec.name for spec in outputs) or "none"
        raise UnsupportedModel(
            f"{len(found)} outputs could be the {of} embedding (outputs: {names}): export the "
            "model with text_embeds and image_embeds, or export the two encoders to a file each, "
            "and give the text encoder as --text"
        )
    return found[0]


def length_of(text: onnx.ModelProto, tokenizer: Path) -> int:
    """Return the length of texts in tokens for a text encoder.

    It is the encoder's fixed length, or the tokenizer's `model_max_length`, or CLIP's length.

    Raises:
        UnsupportedModel: the encoder has inputs other than tokens, or a fixed batch size above 1.
    """
    inputs = graph_inputs(text)
    if not inputs or not all(map(takes_tokens, inputs)):
        raise UnsupportedModel(
            "the text encoder must only have integer inputs [batch, length]: export it with these "
            "inputs"
        )
    if inputs[0].shape[0] not in (-1, 1):
        raise UnsupportedModel(
            f"the text encoder has the fixed batch size {inputs[0].shape[0]}: export it with a "
            "dynamic batch"
        )
    if (fixed := inputs[0].shape[1]) != -1:
        return fixed
    declared = read_tokenizer_config(tokenizer).get("model_max_length")
    return declared if isinstance(declared, int) and 1 <= declared <= LONGEST else _LENGTH


def _check_vectors(read: Array, seen: TensorSpec) -> None:
    if not np.isfinite(read).all():
        raise UnsupportedModel(
            "the text encoder computes NaN or infinity: export it in float32, and check that the "
            "tokenizer belongs to it"
        )
    if seen.shape[1] not in (-1, read.shape[1]):
        raise UnsupportedModel(
            f"text embeddings have {read.shape[1]} numbers, but image embeddings have "
            f"{seen.shape[1]}: give two encoders of the same model"
        )


def _find_logits(
    model: onnx.ModelProto,
    image: onnx.ModelProto,
    text: onnx.ModelProto,
    tokens: Tokens,
    folder: Path,
) -> _Logits | None:
    """Return the scale and bias of the logits that the whole model computes.

    If the model has no logits, return None.

    A graph may compute logits in many ways. So the model is run on texts, and the scale and bias
    are fitted to its output values.

    Raises:
        UnsupportedModel: the logits are not ``scale * cosine + bias``.
    """
    names = [spec.name for spec in graph_outputs(model) if spec.name.startswith("logits_per_")]
    if not names:
        return None
    wanted = [names[0], vectors_of(image).name, vectors_of(text).name]
    [pixels] = graph_inputs(image)
    if image_layout(pixels) is None:
        return None
    rows = max(1, pixels.shape[0])
    shape = [rows, *(224 if side == -1 else side for side in pixels.shape[1:])]
    feeds = {pixels.name: np.random.default_rng(0).normal(size=shape).astype(pixels.dtype)}
    one = graph_inputs(text)[0].shape[0] == 1
    found: list[tuple[Array, Array]] = []
    onnx.save(model, folder / "whole.onnx")
    for texts in [(each,) for each in _TRIED] if one else [_TRIED]:
        read = tokens.feeds(texts, graph_inputs(text))
        logits, image_vectors, text_vectors = _run(folder / "whole.onnx", feeds | read, wanted)
        cosines = _unit(image_vectors) @ _unit(text_vectors).T
        found.append(((logits if logits.shape == cosines.shape else logits.T), cosines))
    (folder / "whole.onnx").unlink()
    logits = np.concatenate([each.ravel() for each, _ in found])
    cosines = np.concatenate([each.ravel() for _, each in found])
    table = np.stack([cosines, np.ones_like(cosines)], axis=1)
    for columns in (1, 2):
        solved = np.linalg.lstsq(table[:, :columns], logits, rcond=None)[0]
        if np.abs(table[:, :columns] @ solved - logits).max() <= _ROUNDING:
            return _Logits(float(solved[0]), float(solved[1]) if columns == 2 else None)
    raise UnsupportedModel(
        f"{names[0]} is not scale * cosine + bias of the embeddings: export each encoder to its "
        "own file (--text)"
    )


def _unit(vectors: Array) -> Array:
    wide: Array = vectors.astype(np.float64)
    unit: Array = wide / np.linalg.norm(wide, axis=1, keepdims=True)
    return unit


def _run(path: Path, feeds: Mapping[str, Array], outputs: Sequence[str]) -> list[Array]:
    with onnxruntime_errors(cannot_load):
        session = open_plain(path)
    with onnxruntime_errors(cannot_run):
        found: list[Array] = session.run(list(outputs), dict(feeds))
        return found


@contextmanager
def split_texts(
    plan: BuildPlan, tokenizer: Path, progress: Progress
) -> Iterator[tuple[BuildPlan, Mapping[str, Path]]]:
    """Prepare a model of images and texts for a build, and remove temporary files afterwards.

    Yields:
        The plan for the image model, and a mapping from the name of each file to publish beside its
        engine to the path of this file.

    Raises:
        InvalidOption: the text encoder or the class names are missing, or an option has no effect
            for this model.
        UnsupportedModel: the encoders cannot be separated, or do not fit each other.
        NotFound: a file does not exist.
        InvalidModel: a file cannot be read.
    """
    source = load(plan.source).proto
    prompts = next((spec for spec in graph_inputs(source) if spec.name == PROMPTS), None)
    if prompts is None or len(prompts.shape) != 3:
        with halves(plan, tokenizer, progress) as found:
            yield found
        return
    with temporary_folder("prompts") as folder:
        with progress.phase("halves"):
            made = _make_detector(plan, source, prompts, tokenizer, folder)
        yield made


def _make_detector(
    plan: BuildPlan, source: onnx.ModelProto, prompts: TensorSpec, tokenizer: Path, folder: Path
) -> tuple[BuildPlan, Mapping[str, Path]]:
    """Return the plan for a detector with fixed classes, and the files to publish with its engine.

    The classes come from --labels or the metadata. One of the files is the original detector. The
    server runs it for requests with other classes.
    """
    if plan.text is None:
        raise InvalidOption(
            f"the model needs text embeddings ({PROMPTS}): give the text encoder with --text, for "
            "example repository/clip/1/text.onnx"
        )
    if plan.backend not in CPU_BACKENDS or plan.rect or plan.image_front or plan.nms_tail:
        raise InvalidOption(
            "a model that accepts texts runs only on CPUs and at one size: leave out --rect, "
            f"--image-front and --nms-tail, and build for {' or '.join(CPU_BACKENDS)}"
        )
    labels = plan.labels or labels_from_metadata(metadata_of(source), None)
    if not labels:
        raise InvalidOption("give --labels: these are the classes for requests without texts")
    if prompts.shape[1] != -1:
        raise UnsupportedModel(
            f"{PROMPTS} accepts exactly {prompts.shape[1]} texts: export the model with a dynamic "
            "number of texts"
        )
    text = load(plan.text).proto
    spec = WordsSpec(
        length := length_of(text, tokenizer),
        (tokens := Tokens(tokenizer, length)).pad,
        vectors_of(text).name,
        1.0,
        None,
        tower=file_sha256(plan.text),
        tokenizer=file_sha256(tokenizer),
    )
    onnx.save(text, folder / TEXT_FILE)
    session = open_session(REFERENCE_BACKEND, folder / TEXT_FILE, max_batch=MAX_ROWS)
    with Words(tokens, session, spec) as words:
        vectors = words.matrix(labels)
    if vectors.shape[1] != prompts.shape[2]:
        raise UnsupportedModel(
            f"text embeddings have {vectors.shape[1]} numbers, but {PROMPTS} needs "
            f"{prompts.shape[2]}: give two files of the same model"
        )
    fixed = _fix_vectors(source, vectors[None])
    set_model_props(fixed, metadata_of(source) | {WORDS: spec.text})
    onnx.save(fixed, folder / "fixed.onnx")
    onnx.save(source, folder / PROMPTS_FILE)
    made = replace(
        plan, source=folder / "fixed.onnx", labels=tuple(labels), text=None, tokenizer=None
    )
    files = {name: folder / name for name in (TEXT_FILE, PROMPTS_FILE)}
    return made, files | {TOKENIZER_FILE: tokenizer}


def _fix_vectors(source: onnx.ModelProto, vectors: Array) -> onnx.ModelProto:
    """Return the model with its input for text embeddings replaced by constant embeddings."""
    fixed = deepcopy(source)
    others = [each for each in fixed.graph.input if each.name != PROMPTS]
    del fixed.graph.input[:]
    fixed.graph.input.extend(others)
    fixed.graph.initializer.append(numpy_helper.from_array(vectors.astype(np.float32), PROMPTS))
    # Remove the inferred shapes, because they have a dynamic number of texts.
    del fixed.graph.value_info[:]
    for output in fixed.graph.output:
        for at, length in enumerate(output.type.tensor_type.shape.dim):
            if at and length.dim_param:
                length.ClearField("dim_param")
    return onnx.shape_inference.infer_shapes(fixed)
