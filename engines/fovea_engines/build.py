"""From an ONNX file to a checked engine in a repository."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path

from fovea_engines.agreement import check_agreement
from fovea_engines.backends.base import Session
from fovea_engines.backends.registry import open_session
from fovea_engines.card import CARD_FILE, CARD_FORMAT, EngineCard
from fovea_engines.device import processor_name
from fovea_engines.digest import file_sha256
from fovea_engines.engine import Engine
from fovea_engines.graph.load import SourceModel, load
from fovea_engines.graph.normalise import normalise
from fovea_engines.graph.tensors import graph_inputs, graph_outputs, metadata_of
from fovea_engines.heads.metadata import labels_from_metadata
from fovea_engines.heads.preprocess import default_preprocess
from fovea_engines.heads.recognise import Recognition, recognise
from fovea_engines.labels import LABELS_FILE, labels_text
from fovea_engines.model_config import CONFIG_FILE, config_text
from fovea_engines.plan import BuildPlan
from fovea_engines.progress import Progress
from fovea_engines.repository import ModelRepository
from fovea_preprocess.errors import (
    BuildError,
    InvalidModel,
    InvalidOption,
    NotFound,
    UnsupportedModel,
)
from fovea_preprocess.spec import PreprocessSpec


def build(plan: BuildPlan, progress: Progress | None = None) -> EngineCard:
    """Build an engine, check it against its source, and publish it as the model's next version.

    Args:
        plan: what is built from what.
        progress: is told each phase.

    Returns:
        The card of the new version; or, when a version was built from the same things before,
        that version's card, and nothing is built.

    Raises:
        BuildError: no engine came out; the repository is untouched.
        InvalidOption: the plan does not fit the model.
        NotFound: the source is not there.
    """
    progress = progress or Progress()
    repository = ModelRepository(plan.repository)
    try:
        return _build(plan, repository, progress)
    except OSError as error:
        where = error.filename or plan.repository
        raise BuildError(
            f"{where} cannot be written ({error.strerror}): nothing was published"
        ) from error


def _build(plan: BuildPlan, repository: ModelRepository, progress: Progress) -> EngineCard:
    with progress.phase("load"):
        source = load(plan.source)
    with progress.phase("normalise"):
        model = normalise(source.proto, plan.size, progress.note)
        inputs, outputs, metadata = graph_inputs(model), graph_outputs(model), metadata_of(model)
        _check_batch(inputs[0].shape[0], plan.max_batch)
        head = recognise(inputs, outputs, metadata, plan.family)
        preprocess = default_preprocess(head.family, inputs, metadata)
    key = plan.content_key(source.sha256, preprocess)
    if (known := repository.find(plan.name, key)) is not None:
        progress.note(f"version {known} of {plan.name} was built from the same: nothing to build")
        return EngineCard.read(repository.folder(plan.name, known) / CARD_FILE)

    with repository.publish(plan.name) as folder:
        with progress.phase("compile"):
            runtime = import_module(f"fovea_engines.backends.{plan.backend}")
            file: Path = runtime.engine_from_onnx(model.SerializeToString(), folder)
            session = open_session(plan.backend, file, max_batch=plan.max_batch)
        with session:
            card = _card(plan, source, key, file, session, head, preprocess, metadata)
            with progress.phase("agreement"):
                agreement = check_agreement(Engine(card, session), plan.source, plan.images)
        card = replace(card, agreement=agreement, build_seconds=dict(progress.seconds))
        card.write(folder / CARD_FILE)
    _write_beside(repository, card)
    return card


def _check_batch(rows: int, max_batch: int) -> None:
    if rows not in (-1, 1):
        raise UnsupportedModel(
            f"the model takes exactly {rows} pictures at a time: export it with a dynamic batch"
        )
    if rows == 1 and max_batch > 1:
        raise UnsupportedModel(
            f"the model takes one picture at a time, so --max-batch {max_batch} cannot be: export "
            "it with a dynamic batch, or leave --max-batch out"
        )


def _card(
    plan: BuildPlan,
    source: SourceModel,
    key: str,
    file: Path,
    session: Session,
    head: Recognition,
    preprocess: PreprocessSpec,
    metadata: dict[str, str],
) -> EngineCard:
    labels = plan.labels or labels_from_metadata(metadata, head.num_classes)
    if labels is not None and head.num_classes not in (None, len(labels)):
        raise InvalidOption(
            f"there are {len(labels)} labels for a model of {head.num_classes} classes"
        )
    # The engine file first: it is the one that is opened; model.bin belongs to model.xml.
    others = sorted(path for path in file.parent.iterdir() if path != file)
    return EngineCard(
        format=CARD_FORMAT,
        name=plan.name,
        created=datetime.now(UTC).replace(microsecond=0),
        content_key=key,
        backend=plan.backend,
        backend_version=plan.backend_version,
        device=processor_name(),
        precision="fp32",
        onnx_sha256=source.sha256,
        files={path.name: file_sha256(path) for path in (file, *others)},
        max_batch=session.max_batch,
        inputs=session.inputs,
        outputs=session.outputs,
        family=head.family,
        reason=head.reason,
        task=head.task,
        labels=labels,
        preprocess=preprocess,
        agreement=None,
        build_seconds={},
        metadata=metadata,
    )


def _write_beside(repository: ModelRepository, card: EngineCard) -> None:
    """Write config.pbtxt and labels.txt of the newest version, unless the user has edited them.

    A file is Fovea's own when it is what the version before would have written.
    """
    *before, _ = repository.versions(card.name)
    last = None
    if before:
        with suppress(NotFound, InvalidModel):
            last = EngineCard.read(repository.folder(card.name, before[-1]) / CARD_FILE)
    for file, text_of in ((CONFIG_FILE, config_text), (LABELS_FILE, _labels)):
        path = repository.root / card.name / file
        own = None if last is None else text_of(last).encode()
        if (not path.exists() or path.read_bytes() == own) and (text := text_of(card)):
            repository.write_beside(card.name, file, text)


def _labels(card: EngineCard) -> str:
    return labels_text(card.labels or ())
