"""Rebuilds an engine that was built for another GPU, or for another release of its runtime."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import onnx

from fovea_engines.backends.registry import get_backend, mismatch
from fovea_engines.build.assemble import assemble, candidate
from fovea_engines.build.plan import BuildPlan
from fovea_engines.build.prepare import PreparedModel
from fovea_engines.clip.texts import TEXT_FILE, TOKENIZER_FILE
from fovea_engines.device import gpu_here
from fovea_engines.engine import Engine
from fovea_engines.evaluation.agreement.matching import CONF, Matching, match
from fovea_engines.evaluation.agreement.measure import measure_outputs
from fovea_engines.evaluation.samples import Pixels, sample_images
from fovea_engines.heads.base import Detector
from fovea_engines.heads.head_file import load_head_of
from fovea_engines.heads.presets import default_preprocess
from fovea_engines.heads.recognition import Recognition
from fovea_engines.onnx_graph.tensors import graph_inputs, graph_outputs
from fovea_engines.progress import Progress
from fovea_engines.repository.card import CARD_FILE, HEAD_FILE, EngineCard, Precision
from fovea_engines.repository.files import file_sha256
from fovea_engines.repository.options import BuilderOptions
from fovea_engines.repository.repository import REPORT_FILE, ModelRepository
from fovea_engines.results.options import PredictOptions
from fovea_preprocess.errors import BackendUnavailable, Disagreement, InvalidModel

# Precision -> smallest accepted `likeness` (0 to 1) of a rebuilt engine. If a model detects nothing
# on Fovea's photographs, its best boxes have low scores, and rounding changes their order: the
# likeness of the demo model in float32 is then 0.947. In INT8, a value may change by one
# quantisation step, which lowers the likeness by up to 0.23. A different model with the same shapes
# has a likeness below 0.5.
_MIN: Mapping[Precision, float] = {"fp32": 0.9, "fp16": 0.9, "int8": 0.5}
# Number of the best detections to compare in each image, and the score below which all detections
# are noise.
_AT_MIN = 20
_NOISE = 0.001


def rebuild(
    folder: Path, progress: Progress | None = None, *, allow_code: bool = False
) -> EngineCard:
    """Rebuild the engine of a version from its stored ONNX file, if it does not fit this machine.

    The version keeps its number, its figures and its report. The new engine must compute about the
    same results as ONNX Runtime with the stored file. Otherwise the old engine stays. If several
    processes call this function at the same time, only one of them rebuilds the engine.

    Args:
        folder: version directory.
        progress: object that receives the phases.
        allow_code: allow Fovea to import a Python file with a user's own head from the directory.

    Returns:
        The card of the version, updated if the engine was rebuilt.

    Raises:
        BackendUnavailable: the repository cannot be written, the runtime cannot be used, or the
            backend does not store an ONNX file.
        InvalidModel: the stored ONNX file is missing or was changed.
        BuildError: no engine was built, or the new engine computes different results.
        InvalidOption: the runtime does not build for this GPU; or the directory has a head as
            Python code, and `allow_code` is False.
    """
    progress, repository = progress or Progress(), ModelRepository(folder.parents[1])
    name, version = folder.parent.name, int(folder.name)
    try:
        with repository.hold(name):
            card = EngineCard.read(folder / CARD_FILE)
            if (reason := mismatch(card)) is None:
                return card
            if not get_backend(card.backend).kept_file:
                raise BackendUnavailable(f"{reason}: build it again with `fovea build`")
            load_head_of(folder, card, allow_code=allow_code)
            with repository.replace(name, version) as new:
                return _rebuild(card, folder, new, progress)
    except OSError as error:
        raise BackendUnavailable(
            f"{error.filename or folder} cannot be written ({error.strerror}), so the engine "
            "cannot be rebuilt: make the repository writable, or build it elsewhere with "
            "`fovea build`"
        ) from error


def _rebuild(card: EngineCard, old: Path, new: Path, progress: Progress) -> EngineCard:
    kept = old / get_backend(card.backend).kept_file
    graph = _read_kept(card, kept)
    plan = BuildPlan(
        source=kept,
        name=card.name,
        repository=old.parents[1],
        backend=card.backend,
        max_batch=card.max_batch,
        precision=card.precision,
        builder=_keep_targets(card.builder),
    )
    prepared = PreparedModel(
        graph=graph,
        sha256=card.onnx_sha256,
        inputs=graph_inputs(graph),
        outputs=graph_outputs(graph),
        head=Recognition(card.family, card.reason, card.task),
        preprocess_from=card.preprocess_from,
        trained={},
        labels=card.labels,
        preprocess=card.preprocess or default_preprocess(None, card.inputs, card.metadata),
        metadata=card.metadata,
        quantised=False,
        unproven=card.unproven,
    )
    with progress.phase("compile"):
        engine = assemble(plan, prepared, graph, card.precision, new, progress)
    with engine, progress.phase("agreement"):
        if not card.unproven:
            _check_likeness(plan, prepared, engine)
        built = engine.card
    beside = (TEXT_FILE, TOKENIZER_FILE, HEAD_FILE)
    kept_beside = {file: card.files[file] for file in beside if file in card.files}
    card = replace(
        card,
        created=built.created,
        # An empty key makes `fovea build` with the same options build again. The old key describes
        # the engine of the first build.
        content_key="",
        backend_version=built.backend_version,
        device=built.device,
        files=built.files | kept_beside,
        judge=built.judge,
        builder=built.builder,
        gpu=built.gpu,
        build_seconds=dict(progress.seconds),
    )
    others = {*card.files, CARD_FILE, plan.runtime.cache_file} - kept_beside.keys()
    for file in old.iterdir():
        if file.is_file() and file.name not in others:
            shutil.copyfile(file, new / file.name)
    _note(card, new / REPORT_FILE, kept.name)
    card.write(new / CARD_FILE)
    return card


def _check_likeness(plan: BuildPlan, prepared: PreparedModel, engine: Engine) -> None:
    precision = plan.precision
    with candidate(plan, prepared, prepared.graph, precision, plan.encodings[0]) as core:
        alike, least = likeness(core, engine), _MIN[precision]
    if not alike >= least:
        raise Disagreement(
            f"the rebuilt engine has an agreement of {alike:.3f} with ONNX Runtime on the same "
            f"graph, below the minimum of {least:g}, so the old engine is kept: run `fovea build` "
            "again"
        )


def _read_kept(card: EngineCard, kept: Path) -> onnx.ModelProto:
    if file_sha256(kept) != card.files.get(kept.name):
        raise InvalidModel(
            f"{kept} was changed after the build (its sha256 differs from the card's), so the "
            "server cannot rebuild the engine: run `fovea build` again"
        )
    return onnx.load(kept)


def _keep_targets(options: BuilderOptions | None) -> BuilderOptions | None:
    """Return the options. An ahead-of-time build also targets this machine's GPU."""
    gpu = gpu_here()
    if options is None or not options.capabilities or gpu is None:
        return options
    capabilities = dict.fromkeys((*options.capabilities, gpu.capability))
    return replace(options, capabilities=tuple(capabilities))


def likeness(one: Engine, other: Engine) -> float:
    """Compare an engine with a correct engine of the same graph, on Fovea's photographs.

    `measure` is not suitable for this: any two engines that detect nothing on these photographs
    would agree completely. This function compares the best boxes even if their scores are low.

    Returns:
        The panoptic quality of the best detections (0 to 1). If there are no detections, 1 minus
        the largest relative error of an output, or 0 if an output is NaN.
    """
    images = list(sample_images(None))
    detects = isinstance(one.head, Detector)
    matchings = [_match(one, other, pixels) for _, pixels in images if detects]
    if total := sum(matching.total for matching in matchings):
        return 1 - sum(matching.lost for matching in matchings) / total
    return measure_outputs(
        (name, one.outputs_of(pixels), other.outputs_of(pixels)) for name, pixels in images
    ).quality


def _match(one: Engine, other: Engine, pixels: Pixels) -> Matching:
    best = one.detect(pixels, PredictOptions(conf=_NOISE, max_det=_AT_MIN)).scores
    conf = float(best.min(initial=CONF))
    margin = conf / 2
    options = PredictOptions(conf=conf - margin)
    return match(one.detect(pixels, options), other.detect(pixels, options), conf, margin)


def _note(card: EngineCard, report: Path, kept: str) -> None:
    if report.is_file():
        with report.open("a", encoding="utf-8") as file:
            file.write(
                f"\n## Rebuilt\n\n{card.created:%Y-%m-%d %H:%M} UTC with {card.backend} "
                f"{card.backend_version}, from {kept}. The figures are the first build's.\n"
            )
