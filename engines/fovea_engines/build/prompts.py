"""Gives a detector that takes vectors of texts (YOLO-World, YOLOE) classes to be built with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.helper import set_model_props

from fovea_engines.backends.registry import CPU_BACKENDS, REFERENCE_BACKEND, open_session
from fovea_engines.build.clip_halves import halves, length_of, vectors_of
from fovea_engines.build.plan import BuildPlan
from fovea_engines.clip.texts import (
    MAX_ROWS,
    PROMPTS,
    PROMPTS_FILE,
    TEXT_FILE,
    TOKENIZER_FILE,
    WORDS,
    Tokens,
    Words,
    WordsSpec,
)
from fovea_engines.heads.metadata import labels_from_metadata
from fovea_engines.onnx_graph.load import load
from fovea_engines.onnx_graph.tensors import graph_inputs, metadata_of
from fovea_engines.progress import Progress
from fovea_engines.repository.files import file_sha256
from fovea_engines.repository.locking import temporary_folder
from fovea_engines.session import Array, TensorSpec
from fovea_preprocess.errors import InvalidOption, UnsupportedModel


@contextmanager
def split_texts(
    plan: BuildPlan, tokenizer: Path, progress: Progress
) -> Iterator[tuple[BuildPlan, Mapping[str, Path]]]:
    """Yield the plan of a network of images alone, and the files that are published beside it.

    Raises as `halves`, and InvalidOption: the network of texts is missing, or classes are, or an
    option has no place here.
    """
    source = load(plan.source).proto
    prompts = next((spec for spec in graph_inputs(source) if spec.name == PROMPTS), None)
    if prompts is None or len(prompts.shape) != 3:
        with halves(plan, tokenizer, progress) as found:
            yield found
        return
    with temporary_folder("prompts") as folder:
        with progress.phase("halves"):
            made = _with_classes(plan, source, prompts, tokenizer, folder)
        yield made


def _with_classes(
    plan: BuildPlan, source: onnx.ModelProto, prompts: TensorSpec, tokenizer: Path, folder: Path
) -> tuple[BuildPlan, Mapping[str, Path]]:
    """Return the plan of the detector of some classes, and the files that are published beside it.

    The classes are those of --labels or of the metadata. The detector as it is answers requests
    that have texts of their own.
    """
    if plan.text is None:
        raise InvalidOption(
            f"the network takes vectors of texts ({PROMPTS}): name the network that makes them "
            "with --text, as repository/clip/1/text.onnx of a model of images and texts"
        )
    if plan.backend not in CPU_BACKENDS or plan.rect or plan.image_front or plan.nms_tail:
        raise InvalidOption(
            "a network that takes texts is built for CPUs and one size: leave out --rect, "
            f"--image-front and --nms-tail, and build for {' or '.join(CPU_BACKENDS)}"
        )
    labels = plan.labels or labels_from_metadata(metadata_of(source), None)
    if not labels:
        raise InvalidOption("--labels is needed: what the detector finds in requests without texts")
    if prompts.shape[1] != -1:
        raise UnsupportedModel(
            f"{PROMPTS} takes exactly {prompts.shape[1]} texts: export it with a dynamic number"
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
            f"vectors of texts have {vectors.shape[1]} numbers, and {PROMPTS} takes "
            f"{prompts.shape[2]}: they are of two models"
        )
    fixed = _fixed(source, vectors[None])
    set_model_props(fixed, metadata_of(source) | {WORDS: spec.text})
    onnx.save(fixed, folder / "fixed.onnx")
    onnx.save(source, folder / PROMPTS_FILE)
    made = replace(
        plan, source=folder / "fixed.onnx", labels=tuple(labels), text=None, tokenizer=None
    )
    files = {name: folder / name for name in (TEXT_FILE, PROMPTS_FILE)}
    return made, files | {TOKENIZER_FILE: tokenizer}


def _fixed(source: onnx.ModelProto, vectors: Array) -> onnx.ModelProto:
    """Return the network with vectors in place of its input."""
    fixed = deepcopy(source)
    others = [each for each in fixed.graph.input if each.name != PROMPTS]
    del fixed.graph.input[:]
    fixed.graph.input.extend(others)
    fixed.graph.initializer.append(numpy_helper.from_array(vectors.astype(np.float32), PROMPTS))
    # Their shapes have the number of texts, which is known now.
    del fixed.graph.value_info[:]
    for output in fixed.graph.output:
        for at, length in enumerate(output.type.tensor_type.shape.dim):
            if at and length.dim_param:
                length.ClearField("dim_param")
    return onnx.shape_inference.infer_shapes(fixed)
