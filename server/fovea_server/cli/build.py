"""`fovea build`: builds an ONNX model into a checked engine."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from fovea_engines.backends.registry import BACKENDS
from fovea_engines.build.plan import AUTO, MAX_BATCH, BuildPlan, choices
from fovea_engines.heads.presets import read_preprocess
from fovea_engines.progress import ConsoleProgress
from fovea_engines.repository.card import HEAD_FILE, EngineCard, Precision
from fovea_engines.repository.figures import Goal
from fovea_engines.repository.labels import find_labels
from fovea_engines.repository.options import (
    BuilderOptions,
    Plugin,
    Profile,
    default_profiles,
    parse_capabilities,
)
from fovea_engines.repository.repository import (
    DEFAULT_REPOSITORY,
    ModelRepository,
    check_name,
)
from fovea_preprocess.errors import FoveaError, InvalidOption
from fovea_server.cli.card_table import agreement_table, card_table
from fovea_server.cli.options import (
    AsJson,
    Backend,
    CalibrationOption,
    CalibratorOption,
    CapabilityOption,
    ForceHeadOption,
    HeadOption,
    LabelsOption,
    LevelOption,
    Needs,
    PluginOption,
    PreprocessOption,
    ProfileOption,
    RepositoryOption,
    SizeOption,
    WorkspaceOption,
    check_option,
    check_options,
    head_name,
    is_typed,
    model_option,
    parse_size,
    precision_option,
)
from fovea_server.cli.serving_hint import serving_notes
from fovea_server.pipelines.recipe import Pipeline, is_pipeline

_graph_option = partial(typer.Option, rich_help_panel="Graph")

_INT8: Needs = {"precision": ("int8", AUTO)}
_BUILDER: Needs = {"backend": tuple(name for name, one in BACKENDS.items() if one.takes_builder)}
_AHEAD: Needs = {"backend": tuple(name for name, one in BACKENDS.items() if one.ahead_of_time)}
NEEDS: Mapping[str, Needs] = {
    "calibration": _INT8,
    "calibrator": _INT8,
    "exclude_nodes": _INT8,
    "max_drop": {"data": ()},
    "force_head": {"head": ()},
    "profile": _BUILDER,
    "workspace": _BUILDER,
    "builder_level": _BUILDER,
    "compute_capability": _AHEAD,
    "plugin": _BUILDER,
    "check": {"pipeline": ()},
}
_OF_PIPELINE = ("pipeline", "repository", "images", "check", "as_json")


def build(
    context: typer.Context,
    model: Annotated[
        Path | None,
        typer.Argument(metavar="MODEL.onnx", help="The exported model.", exists=True),
    ] = None,
    repository: RepositoryOption = DEFAULT_REPOSITORY,
    name: Annotated[
        str | None, model_option(help="Name of the model.", show_default="name of the file")
    ] = None,
    backend: Annotated[
        Backend,
        model_option(
            help="Runtime. auto times the CPU runtimes for a few seconds, and keeps the fastest."
        ),
    ] = "auto",
    goal: Annotated[
        Goal,
        model_option(
            *("--hint", "--for"),
            help=(
                "With auto: optimise images/s under load (throughput), or the time of a single "
                "image (latency)."
            ),
        ),
    ] = "throughput",
    size: SizeOption = None,
    rect: Annotated[
        bool,
        model_option(
            "--rect",
            help=(
                "Accept every input size that is a multiple of the stride, up to --size, and use "
                "the smallest that fits each image: wide images need no grey padding. ONNX "
                "Runtime only."
            ),
        ),
    ] = False,
    max_batch: Annotated[
        int | None,
        model_option(
            metavar="N",
            min=1,
            max=MAX_BATCH,
            help=(
                "Largest number of images in one call. A CPU is fastest with 1, because each core "
                "then processes its own image. On a GPU try 8 or 16."
            ),
            show_default="1, or that of --profile",
        ),
    ] = None,
    labels: LabelsOption = None,
    text: Annotated[
        Path | None,
        model_option(
            metavar="FILE.onnx",
            help="Text encoder of a CLIP or SigLIP model, if it is a separate file. Needs "
            "--tokenizer.",
            exists=True,
        ),
    ] = None,
    tokenizer: Annotated[
        Path | None,
        model_option(
            metavar="FILE.json",
            help="The tokenizer.json of a CLIP or SigLIP model.",
            show_default="the one beside the model",
            exists=True,
        ),
    ] = None,
    head: HeadOption = None,
    force_head: ForceHeadOption = False,
    precision: Annotated[
        Literal["auto", Precision],
        precision_option(
            help=(
                "Precision of the engine. auto builds fp32, bf16 if the CPU supports it, and int8 "
                "with --calibration, and keeps the fastest engine that passes its check."
            )
        ),
    ] = "fp32",
    calibration: CalibrationOption = None,
    calibrator: CalibratorOption = "percentile",
    exclude_nodes: Annotated[
        list[str] | None,
        precision_option(
            *("--exclude-nodes", "--keep-float"),
            metavar="auto|none|PATTERN",
            help=(
                "Blocks or layers to keep in float in an INT8 build: names with wildcards, none, "
                "or auto. auto searches for them if the INT8 results differ too much from the "
                "source model's. May be repeated."
            ),
            show_default="auto",
        ),
    ] = None,
    images: Annotated[
        Path | None,
        check_option(
            metavar="DIR",
            help="Images to check the engine on, and the images of --data.",
            show_default="those of --calibration, or 3 that ship with Fovea",
            exists=True,
            file_okay=False,
        ),
    ] = None,
    data: Annotated[
        Path | None,
        check_option(
            metavar="LABELS",
            help="Labels of the --images: COCO, YOLO, PNG class maps, a folder per class, a table "
            "of texts or attributes, or target images.",
            exists=True,
        ),
    ] = None,
    max_drop: Annotated[
        float,
        check_option(
            metavar="DROP",
            min=0,
            max=1,
            help="Largest accepted loss of accuracy (such as mAP50-95) on the labels of --data.",
        ),
    ] = 0.01,
    pipeline: Annotated[
        str | None,
        check_option(
            metavar="NAME",
            help=(
                "In place of MODEL.onnx: run this pipeline on the --images, and store the results "
                "as its reference."
            ),
        ),
    ] = None,
    check: Annotated[
        bool,
        check_option(
            "--check",
            help=(
                "Compare the results of the --pipeline with its reference, and show each stage "
                "whose engine or results have changed."
            ),
        ),
    ] = False,
    preprocess: PreprocessOption = None,
    tensorrt: Annotated[
        Path | None,
        _graph_option(
            metavar="FILE.onnx",
            help="Also write and check an ONNX file for TensorRT, with signed INT8 and FP16.",
        ),
    ] = None,
    image_front: Annotated[
        bool | None,
        _graph_option(
            "--image-front/--no-image-front",
            help="Let the graph take uint8 images and normalise them.",
            show_default="for TensorRT",
        ),
    ] = None,
    nms_tail: Annotated[
        bool | None,
        _graph_option(
            "--nms-tail/--no-nms-tail",
            help=(
                "Let the graph suppress duplicate boxes. The request option iou then has no effect."
            ),
            show_default="for TensorRT",
        ),
    ] = None,
    profile: ProfileOption = None,
    workspace: WorkspaceOption = None,
    builder_level: LevelOption = 3,
    compute_capability: CapabilityOption = None,
    plugin: PluginOption = None,
    as_json: AsJson = False,
) -> None:
    """Build an ONNX model into a checked engine.

    The build simplifies the graph, converts it to the precision, compiles it, and compares the
    engine with the source model. In FP32, boxes must agree within 1 pixel, weighted by score, and
    scores within 0.01. In other precisions, the engine must find what the source model finds. With
    labels (--data), it may lose at most --max-drop of the accuracy instead. An engine that passes
    becomes the next version of the model, with its figures in card.md. Otherwise the previous
    version stays in service. Repeating the same build does nothing.

    Example: fovea build yolov8n.onnx --name people

    Example: fovea build yolov8n.onnx --precision int8 --calibration images/

    Example: fovea build yolov8n.onnx --rect --images frames/

    Example: fovea build yolov8n.onnx --precision auto --calibration images/ --hint latency

    Example: fovea build yolov8n.onnx --backend tensorrt-rtx --precision fp16
    --compute-capability 80,89

    Example: fovea build --pipeline traffic --images frames/ --check
    """
    from fovea_engines.build.build import build as build_engine
    from fovea_server.models.servable import check_servable

    others = [(each.name or "", "pipeline") for each in context.command.params]
    clashes = [pair for pair in others if pair[0] not in _OF_PIPELINE]
    check_options(context, NEEDS, clashes=[("profile", "max_batch"), *clashes])
    typed_repository = str(repository) if is_typed(context, "repository") else None
    if pipeline is not None:
        where = f" --repository {shlex.quote(typed_repository)}" if typed_repository else ""
        _refer(repository, pipeline, images, where, check=check, as_json=as_json)
        return
    if model is None:
        raise InvalidOption("give the file to build (MODEL.onnx), or --pipeline NAME")
    if is_typed(context, "goal") and AUTO not in (backend, precision):
        raise InvalidOption("--hint has no effect without --backend auto or --precision auto")
    candidates = choices(backend, precision, rect=rect)
    first_backend, first_precision = candidates[0]
    builder = _builder_options(
        profile, max_batch, workspace, builder_level, compute_capability, plugin
    )
    plan = BuildPlan(
        source=model,
        name=_name_of(model) if name is None else name,
        repository=repository,
        backend=first_backend,
        size=parse_size(size),
        rect=rect,
        max_batch=max_batch or (builder.max_batch if builder else 1),
        labels=None if labels is None else find_labels(labels),
        family=head_name(head),
        force_head=force_head,
        images=images,
        precision=first_precision,
        calibration=calibration,
        calibrator=calibrator,
        keep_float=_parse_excluded(exclude_nodes),
        data=data,
        max_drop=max_drop,
        preprocess=None if preprocess is None else read_preprocess(preprocess),
        tensorrt=tensorrt,
        text=text,
        tokenizer=tokenizer,
        image_front=image_front,
        nms_tail=nms_tail,
        builder=builder,
        choices=candidates if len(candidates) > 1 else (),
        goal=goal,
    )
    own = ModelRepository(repository)
    before = own.served_or_none(plan.name)
    card = build_engine(plan, ConsoleProgress(), check_servable)
    version = own.find(card.name, card.content_key) or 0
    if as_json:
        standing = own.standing(card.name, version)
        state = {"served": standing != "not served", "current": standing == "current"}
        document = {"version": version, **state, "card": card.to_json()}
        typer.echo(json.dumps(document, indent=2))
        return
    _show(card, version, own, before, typed_repository)


def _show(
    card: EngineCard,
    version: int,
    repository: ModelRepository,
    before: Sequence[int],
    typed_repository: str | None,
) -> None:
    """Print the card of a new version as a table, and the next steps."""
    from rich.console import Console

    console = Console(highlight=False)
    console.print(card_table(card, version, repository.standing(card.name, version)))
    serve = ["fovea", "serve", *([typed_repository] if typed_repository else [])]
    serve += ["--allow-code"] if HEAD_FILE in card.files else []
    if (guess := card.guess) is not None:
        console.print(guess, markup=False, soft_wrap=True)
    for note in serving_notes(repository, card, version, before, shlex.join(serve)):
        console.print(note, markup=False, soft_wrap=True)


def _refer(
    repository: Path, name: str, images: Path | None, where: str, *, check: bool, as_json: bool
) -> None:
    """Make or check the reference of a pipeline."""
    from rich.console import Console

    from fovea_server.offline.refer import compare_reference, keep_reference

    if images is None:
        raise InvalidOption(
            f"--pipeline needs a folder of images: `fovea build --pipeline {name}{where} --images "
            f"DIR{' --check' if check else ''}`"
        )
    folder = ModelRepository(repository).path_of(name).absolute()
    if not is_pipeline(folder):
        raise InvalidOption(f"{name} is not a pipeline: build it from its MODEL.onnx")
    try:
        engines = dict(Pipeline.read(folder).engines())
        act = compare_reference if check else keep_reference
        stages = act(folder, engines, images)
    except FoveaError as error:
        if not check:
            raise
        # Exit code 1 means that results differ, so an error of the check needs another exit code.
        raise InvalidOption(str(error)) from error
    same = all(each.same for each in stages)
    if as_json:
        document = {"model": folder.name, "same": same, "stages": [asdict(s) for s in stages]}
        typer.echo(json.dumps(document, indent=2))
    else:
        Console(highlight=False).print(agreement_table(stages))
        now = f"reference: {Pipeline.read(folder).reference}"
        if not same:
            again = (
                f"fovea build --pipeline {folder.name}{where} --images {shlex.quote(str(images))}"
            )
            undo = ", ".join(
                f"`{each.undo}{where}`" for each in stages if each.undo and not each.same
            )
            mending = "check pipeline.toml and the models of the stages that differ"
            if undo:
                mending = f"{undo} restores the earlier version"
            now += (
                "; the results differ from the reference. If that is intended, create the "
                f"reference again: `{again}`. If not, {mending}."
            )
        typer.echo(now)
    if not same:
        raise typer.Exit(1)


def _name_of(model: Path) -> str:
    """Return the name of a model from the name of its file.

    Raises:
        InvalidOption: a model cannot have this name.
    """
    try:
        return check_name(model.stem)
    except InvalidOption as error:
        usable = re.sub(r"[^\w.-]+", "_", model.stem, flags=re.ASCII).strip("_.")[:64]
        raise InvalidOption(
            f"{error}: choose another name with --name {usable or 'model'}"
        ) from error


def _parse_excluded(given: list[str] | None) -> tuple[str, ...]:
    if given in (None, [AUTO]):
        return (AUTO,)
    if given == ["none"]:
        return ()
    if AUTO in given or "none" in given:
        raise InvalidOption(
            "--exclude-nodes must be auto, none, or patterns: give only one of these kinds"
        )
    return tuple(given)


def _builder_options(
    profile: Sequence[str] | None,
    max_batch: int | None,
    workspace: int | None,
    level: int,
    capability: str | None,
    plugin: Sequence[Path] | None,
) -> BuilderOptions | None:
    """Return the TensorRT options that were typed; None if none was typed."""
    if not profile and not plugin and (workspace, level, capability) == (None, 3, None):
        return None
    return BuilderOptions(
        profiles=tuple(map(Profile.parse, profile or ())) or default_profiles(max_batch or 1),
        workspace=None if workspace is None else workspace << 20,
        level=level,
        capabilities=() if capability is None else parse_capabilities(capability),
        plugins=tuple(map(Plugin.of, plugin or ())),
    )
