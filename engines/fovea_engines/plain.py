"""A plain Triton version folder: an engine without a card, which is derived on the fly."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

from fovea_engines.backends.base import Session, TensorSpec
from fovea_engines.backends.registry import open_session
from fovea_engines.card import CARD_FILE, CARD_FORMAT, EngineCard
from fovea_engines.device import processor_name
from fovea_engines.digest import file_sha256
from fovea_engines.graph.metadata import read_metadata
from fovea_engines.heads.metadata import labels_from_metadata
from fovea_engines.heads.preprocess import default_preprocess
from fovea_engines.heads.recognise import recognise
from fovea_engines.labels import LABELS_FILE, read_labels
from fovea_engines.model_config import CONFIG_FILE, read_max_batch
from fovea_preprocess.errors import NotFound, UnsupportedModel
from fovea_preprocess.spec import PreprocessSpec

# The first file that is there is opened by its runtime.
_BACKENDS = {"model.onnx": "onnxruntime", "model.xml": "openvino"}


def open_plain(folder: Path, *, threads: int | None = None) -> tuple[EngineCard, Session]:
    """Open a version folder that has no card, and write one in memory.

    Raises:
        NotFound: there is neither model.onnx nor model.xml.
        InvalidModel: the runtime cannot read it.
    """
    file = next((name for name in _BACKENDS if (folder / name).is_file()), None)
    if file is None:
        raise NotFound(f"{folder} has no engine: none of {CARD_FILE}, {', '.join(_BACKENDS)}")
    metadata = read_metadata(folder / file) if file.endswith(".onnx") else {}
    max_batch = read_max_batch(folder.parent / CONFIG_FILE)
    session = open_session(_BACKENDS[file], folder / file, max_batch=max_batch, threads=threads)
    return _card(folder, file, session, metadata), session


def _card(folder: Path, file: str, session: Session, metadata: dict[str, str]) -> EngineCard:
    recognition = recognise(session.inputs, session.outputs, metadata)
    labels = labels_from_metadata(metadata, recognition.num_classes)
    if labels is None and (folder.parent / LABELS_FILE).is_file():
        labels = read_labels(folder.parent / LABELS_FILE)
    digest = file_sha256(folder / file)
    return EngineCard(
        format=CARD_FORMAT,
        name=folder.resolve().parent.name,
        created=None,
        content_key="",
        backend=_BACKENDS[file],
        backend_version=version(_BACKENDS[file]),
        device=processor_name(),
        precision="fp32",
        onnx_sha256=digest if file.endswith(".onnx") else "",
        files={file: digest},
        max_batch=session.max_batch,
        inputs=session.inputs,
        outputs=session.outputs,
        family=recognition.family,
        reason=recognition.reason,
        task=recognition.task,
        labels=labels,
        preprocess=_preprocess(recognition.family, session.inputs, metadata),
        agreement=None,
        build_seconds={},
        metadata=metadata,
    )


def _preprocess(
    family: str | None, inputs: tuple[TensorSpec, ...], metadata: dict[str, str]
) -> PreprocessSpec | None:
    try:
        return default_preprocess(family, inputs, metadata) if len(inputs) == 1 else None
    except UnsupportedModel:
        if family is not None:
            raise
        # Any model may lie in a plain repository; one that takes no pictures is still served.
        return None
