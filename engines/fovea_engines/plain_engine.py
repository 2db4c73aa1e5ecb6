"""Opens a plain Triton version directory. It has no card, so this module derives one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from itertools import starmap
from pathlib import Path
from typing import Any

import numpy as np

from fovea_engines.backends.registry import BACKENDS, backends_for, get_backend, open_session
from fovea_engines.device import processor_name
from fovea_engines.heads.image_inputs import image_of, list_other_inputs, source_feeds
from fovea_engines.heads.metadata import labels_from_metadata
from fovea_engines.heads.presets import default_preprocess
from fovea_engines.heads.recognise import Observe, recognise
from fovea_engines.heads.recognition import TENSORS
from fovea_engines.heads.signature import image_layout
from fovea_engines.onnx_graph.tensors import explain_file, read_metadata
from fovea_engines.repository.card import CARD_FORMAT, EngineCard, HeadCandidate
from fovea_engines.repository.config_pbtxt import CONFIG_FILE, read_config
from fovea_engines.repository.files import file_sha256
from fovea_engines.repository.labels import LABELS_FILE, read_labels
from fovea_engines.session import Array, Session, TensorSpec
from fovea_preprocess.errors import BackendError, InvalidModel, NotFound, UnsupportedModel
from fovea_preprocess.preprocessor import Preprocessor
from fovea_preprocess.spec import PreprocessSpec


@dataclass(frozen=True, slots=True)
class PlainChoice:
    """Options for an engine without a card.

    Attributes:
        file: name of the engine file; "" means the first known file in the directory.
        backend: name of the backend; "" means the default for the file.
        max_batch: largest batch size of a call; 0 if clients send no batch dimension. None means
            `max_batch_size` of config.pbtxt, or 1 if that is smaller. The field has no effect if
            the model has no batch dimension.
    """

    file: str = ""
    backend: str = ""
    max_batch: int | None = None


def engine_files() -> tuple[str, ...]:
    """Return the possible names of an engine file, e.g. "model.onnx", in the order of preference.

    If a directory has several of these files, `open_plain` opens the first one in this order.
    """
    suffixes = (suffix for one in BACKENDS.values() for suffix in one.suffixes)
    return tuple(dict.fromkeys(f"model{suffix}" for suffix in suffixes))


def open_plain(
    folder: Path,
    choice: PlainChoice | None = None,
    *,
    threads: int | None = None,
    streams: int | None = None,
) -> tuple[EngineCard, Session]:
    """Open a version directory without a card, and create a card in memory.

    The arguments `threads` and `streams` have the same meaning as in `Engine.open`.

    Raises:
        NotFound: the file that `choice` names is missing, or the directory has no file with a known
            name.
        InvalidModel: the runtime cannot read the file, or does not support it.
        BackendUnavailable: the runtime is not installed, or the file was built for another version
            or device.
    """
    choice = choice or PlainChoice()
    names = (choice.file,) if choice.file else engine_files()
    file = next(filter(None, (_engine_file(folder, name) for name in names)), choice.file)
    if not file:
        raise NotFound(
            f"{folder} has no engine file: copy one of these into it: {', '.join(names)} (or a "
            "version that `fovea build` made)"
        )
    if not (folder / file).is_file():
        raise NotFound(
            f"config.pbtxt names the file {file}, which {folder} does not have: copy it there"
        )
    if (other := explain_file(folder / file)) is not None:
        raise InvalidModel(f"{folder / file} is {other}")
    backend, metadata = _origin(folder / file, choice.backend)
    max_batch = choice.max_batch
    if max_batch is None:
        max_batch = max(1, read_config(folder.parent / CONFIG_FILE).max_batch_size)
    session = open_session(
        backend, folder / file, max_batch=max_batch, threads=threads, streams=streams
    )
    if not _has_batch(session):
        session.max_batch = 0
    return _card(folder, file, backend, session, metadata), session


def _engine_file(folder: Path, name: str) -> str | None:
    """Return an engine file's path relative to a version directory, or None if the file is missing.

    Triton's documentation stores an ONNX file with external weights in a directory that has the
    file's name: model.onnx/model.onnx.
    """
    return next((at for at in (name, f"{name}/{name}") if (folder / at).is_file()), None)


def _has_batch(session: Session) -> bool:
    """Return whether the first dimension of every tensor can be a batch."""
    first = {spec.shape[:1] for spec in (*session.inputs, *session.outputs)}
    return first in ({(-1,)}, {(1,)})


def _origin(file: Path, declared: str) -> tuple[str, dict[str, str]]:
    """Return the backend's name for an engine file, and the exporter's metadata.

    `declared` is the backend's name in config.pbtxt; "" means the default for the file.
    """
    # TensorRT runs code from a plan when it deserialises the plan. So TensorRT must not open a file
    # whose suffix belongs to another backend.
    fitting = {backend.name: backend for backend in backends_for(file.name)}
    if declared and declared not in fitting:
        raise InvalidModel(
            f"{file} fits the backend {' or '.join(fitting)}, but config.pbtxt names "
            f"'{declared}': correct config.pbtxt, or the suffix of the file"
        )
    made_for, metadata = next(iter(fitting.values())).read_header(file)
    return declared or made_for, read_metadata(file) if file.suffix == ".onnx" else metadata


def _card(
    folder: Path, file: str, backend: str, session: Session, metadata: dict[str, str]
) -> EngineCard:
    own = _own_values(folder / file, session)
    seen = _observer(session, metadata, own)
    image = _image(session.inputs)
    other_inputs = list_other_inputs(session.inputs) if image != session.inputs else ()
    recognition = recognise(
        image, session.outputs, metadata, observe=seen, other_inputs=other_inputs
    )
    if recognition.open:
        cure = "to get boxes, build it with `fovea build --head FAMILY`"
        recognition = replace(recognition, task=TENSORS, reason=f"{recognition.reason}; {cure}")
    if file.endswith(".onnx") and (recognition.resizes or recognition.guessed):
        # Imported here, because onnx takes 0.3 s to import.
        import onnx

        from fovea_engines.onnx_graph.as_written import add_own_preprocess
        from fovea_engines.onnx_graph.external_data import read_external_data

        model = onnx.load(folder / file, load_external_data=False)
        if recognition.resizes:
            read_external_data(model, folder / file)
        recognition = add_own_preprocess(recognition, model)
    try:
        fields = {**recognition.own_preprocess, **own}
        preprocess = _preprocess(recognition.family, image, metadata, fields)
    except UnsupportedModel as error:
        reason = f"{recognition.reason}; its tensors are served, because {error}"
        recognition = replace(recognition, family=None, task=TENSORS, reason=reason)
        preprocess = None
    labels = labels_from_metadata(metadata, recognition.num_classes) or recognition.labels
    if labels is None and (folder.parent / LABELS_FILE).is_file():
        labels = read_labels(folder.parent / LABELS_FILE)
    digest = file_sha256(folder / file)
    return EngineCard(
        format=CARD_FORMAT,
        name=folder.resolve().parent.name,
        created=None,
        content_key="",
        backend=backend,
        backend_version=get_backend(backend).info.version or "",
        device=processor_name(),
        precision="fp32",
        onnx_sha256=digest if file.endswith(".onnx") else "",
        files={file: digest},
        max_batch=session.max_batch,
        inputs=session.inputs,
        outputs=session.outputs,
        family=recognition.family,
        head_outputs=recognition.outputs,
        num_classes=recognition.num_classes,
        skeleton=recognition.skeleton,
        reason=recognition.reason,
        task=recognition.task,
        labels=labels,
        preprocess=preprocess,
        agreement=None,
        build_seconds={},
        metadata=metadata,
        head_candidates=tuple(starmap(HeadCandidate, recognition.candidates)),
        preprocess_from=None if preprocess is None else recognition.preprocess_from,
    )


def _image(inputs: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
    """Return only the first input if it is an image that determines the other inputs.

    Otherwise return all inputs.
    """
    try:
        return inputs[:1] if image_of(inputs) is inputs[0] else inputs
    except UnsupportedModel:
        return inputs


def _own_values(file: Path, session: Session) -> Mapping[str, Any]:
    """Return the `PreprocessSpec` fields that follow from a normalisation inside an ONNX file."""
    if file.suffix != ".onnx" or not session.inputs or image_layout(session.inputs[0]) is None:
        return {}
    # Imported here, because onnx takes 0.3 s to import.
    import onnx

    from fovea_engines.onnx_graph.own_normalisation import own_normalisation

    with suppress(UnsupportedModel):
        return own_normalisation(onnx.load(file, load_external_data=False))
    return {}


def _observer(session: Session, metadata: dict[str, str], own: Mapping[str, Any]) -> Observe:
    """Return a function that runs an engine on a grey image, preprocessed for a head family.

    The recognition of the head rejects head families that do not fit these outputs.
    """

    @cache
    def run(spec: PreprocessSpec) -> Sequence[Mapping[str, Array]]:
        row, _ = Preprocessor(spec).row(np.full((8, 8, 3), 128, np.uint8))
        return [session.infer(source_feeds(session.inputs, row))]

    def observe(family: str | None) -> Sequence[Mapping[str, Array]]:
        try:
            spec = _preprocess(family, _image(session.inputs), metadata, own)
            return () if spec is None else run(spec)
        except (UnsupportedModel, BackendError):
            return ()

    return observe


def _preprocess(
    family: str | None,
    inputs: tuple[TensorSpec, ...],
    metadata: dict[str, str],
    own: Mapping[str, Any],
) -> PreprocessSpec | None:
    # A graph with a fixed batch size above 1 cannot process single images.
    if len(inputs) != 1 or inputs[0].shape[:1] not in ((-1,), (1,)):
        return None
    try:
        return default_preprocess(family, inputs, metadata, trained=own)
    except UnsupportedModel:
        if family is not None:
            raise
        # A plain repository may contain any model. The server serves a model that does not accept
        # images as a model of tensors.
        return None
