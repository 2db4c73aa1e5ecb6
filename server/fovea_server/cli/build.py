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
        typer.Argument(metavar="MODEL.onnx", help="ONNX file of the model.", exists=True),
    ] = None,
    repository: RepositoryOption = DEFAULT_REPOSITORY,
    name: Annotated[
        str | None,
        model_option(help="Name of the model in the repository.", show_default="name of the file"),
    ] = None,
    backend: Annotated[
        Backend,
        model_option(
            help=(
                "Runtime that executes the engine. auto builds an engine for each CPU runtime, "
                "measures their speed for a few seconds, and keeps the fastest."
            )
        ),
    ] = "auto",
    goal: Annotated[
        Goal,
        model_option(
            *("--hint", "--for"),
            help=(
                "With --backend auto or --precision auto: keep the engine with the most images "
                "per second under load (throughput), or with the shortest time for a single image "
                "(latency)."
            ),
        ),
    ] = "throughput",
    size: SizeOption = None,
    rect: Annotated[
        bool,
        model_option(
            "--rect",
            help=(
                "Build an engine that accepts several input sizes: the multiples of the model's "
                "stride up to --size. Each image then uses the smallest size that contains it, so "
                "that wide images need less padding. Only for ONNX Runtime. Without this option, "
                "the engine has one input size."
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
                "Largest batch size of the engine. On a CPU, 1 is fastest, because each core then "
                "processes its own image. On a GPU, try 8 or 16."
            ),
            show_default="1, or the largest batch size of --profile",
        ),
    ] = None,
    labels: LabelsOption = None,
    text: Annotated[
        Path | None,
        model_option(
            metavar="FILE.onnx",
            help=(
                "ONNX file of the text encoder of a CLIP or SigLIP model, if the encoder is a "
                "separate file. It requires --tokenizer, or a tokenizer.json in the same folder."
            ),
            exists=True,
        ),
    ] = None,
    tokenizer: Annotated[
        Path | None,
        model_option(
            metavar="FILE.json",
            help="File tokenizer.json of a CLIP or SigLIP model, which converts texts to tokens.",
            show_default="tokenizer.json in the model's folder",
            exists=True,
        ),
    ] = None,
    head: HeadOption = None,
    force_head: ForceHeadOption = False,
    precision: Annotated[
        Literal["auto", Precision],
        precision_option(
            help=(
                "Number format of the engine. int8 requires --calibration. auto builds an engine "
                "in fp32, in bf16 if the CPU supports it, and in int8 if --calibration is given, "
                "and keeps the fastest engine that passes the check."
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
                "Layers that stay in floating point in an INT8 engine: the name of a block, or a "
                "pattern of layer names with * and ?. May be repeated. none converts all layers; "
                "auto selects blocks if the INT8 results differ too much from the results of the "
                "source model."
            ),
            show_default="auto",
        ),
    ] = None,
    images: Annotated[
        Path | None,
        check_option(
            metavar="DIR",
            help=(
                "Folder of images on which the build compares the engine with the source model. "
                "With --data, these are the labelled images."
            ),
            show_default="the images of --calibration, or 3 images that ship with Fovea",
            exists=True,
            file_okay=False,
        ),
    ] = None,
    data: Annotated[
        Path | None,
        check_option(
            metavar="LABELS",
            help=(
                "Labels of the images in --images, to measure the accuracy of the engine, in a "
                "format of `fovea eval --data`. Without labels, the build only compares the "
                "results of the engine with the results of the source model."
            ),
            exists=True,
        ),
    ] = None,
    max_drop: Annotated[
        float,
        check_option(
            metavar="DROP",
            min=0,
            max=1,
            help=(
                "Largest accepted loss of accuracy on the labels of --data: 0.01 allows mAP50-95 "
                "to fall from 0.40 to 0.39."
            ),
        ),
    ] = 0.01,
    pipeline: Annotated[
        str | None,
        check_option(
            metavar="NAME",
            help=(
                "Name of a pipeline, instead of MODEL.onnx. The command builds nothing: it runs "
                "the pipeline on --images, and stores the results as the reference for --check."
            ),
        ),
    ] = None,
    check: Annotated[
        bool,
        check_option(
            "--check",
            help=(
                "With --pipeline: compare the results with the stored reference instead of "
                "replacing it, and show each stage with a changed engine or changed results."
            ),
        ),
    ] = False,
    preprocess: PreprocessOption = None,
    tensorrt: Annotated[
        Path | None,
        _graph_option(
            metavar="FILE.onnx",
            help=(
                "Also write an ONNX file for TensorRT in the precision of the engine, and check "
                "it. With --precision int8, the file has signed INT8 values, as TensorRT requires."
            ),
        ),
    ] = None,
    image_front: Annotated[
        bool | None,
        _graph_option(
            "--image-front/--no-image-front",
            help=(
                "Add the normalisation of images to the graph, so that the engine accepts uint8 "
                "images."
            ),
            show_default="only for TensorRT engines",
        ),
    ] = None,
    nms_tail: Annotated[
        bool | None,
        _graph_option(
            "--nms-tail/--no-nms-tail",
            help=(
                "Add non-maximum suppression (NMS), which removes duplicate boxes, to the graph. "
                "The request option iou then has no effect."
            ),
            show_default="only for TensorRT engines",
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
    results of the engine with the results of the source model. In FP32, boxes must agree within 1
    pixel, weighted by score, and scores within 0.01. In other precisions, most results must agree:
    98 % in FP16, 90 % in BF16 and 80 % in INT8. With labels (--data), the engine may instead lose
    at most --max-drop of the accuracy. An engine that passes becomes the next version of the model.
    Its file card.md has the measured figures. If the engine fails, the build ends with an error,
    and no version changes. Repeating the same build does nothing.

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
    """Write the reference results of a pipeline, or compare the pipeline with them."""
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
