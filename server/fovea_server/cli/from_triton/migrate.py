"""Chooses the files of a Triton repository that go into a Fovea project, and reports the rest."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fovea_engines.heads.signature import image_layout
from fovea_engines.repository.config_edit import edit_text
from fovea_engines.repository.config_pbtxt import CONFIG_FILE, fields_in_source
from fovea_engines.repository.labels import labels_text, read_labels
from fovea_engines.repository.model_config import ModelConfig
from fovea_preprocess.errors import FoveaError, InvalidModel, InvalidOption, NotFound
from fovea_server.cli.from_triton.repository import (
    MODEL_FILE,
    STEPS,
    TritonModel,
    is_below,
    order_models,
    read_models,
    resolve_inside,
)

Files = dict[str, bytes | Path]
"""Files to write: path in the project -> content, or path of the file to copy."""

_MAX_LABELS = 1 << 20
# Fields of config.pbtxt that need no report: a build writes these fields itself, and
# `response_cache` is copied.
_WRITTEN = {"name", "platform", "backend", "input", "output", "max_batch_size", "response_cache"}
_TUNED = {"instance_group", "dynamic_batching", "optimization"}


@dataclass(frozen=True, slots=True)
class Part:
    """A model that an ensemble runs: its name, its kind, and its file or directory."""

    name: str
    kind: str
    file: str

    def __str__(self) -> str:
        return f"{self.name} ({self.kind}, {self.file})"


@dataclass(slots=True)
class Network:
    """A neural network of a Triton repository, the steps before and after it, and its migration.

    Steps are models of the repository that run code, such as preprocessing.

    Attributes:
        name: name of the model.
        file: file of the network, or the directory of its version if there is no file.
        ensemble: name of the longest ensemble that runs the network; None if no ensemble runs it.
        takes: description of the network's inputs; "" if the file cannot be read.
        steps: the steps that run directly before and after the network.
        labels: number of class names in the repository's label file.
        left: tasks that remain for the user.
        build: command that builds the network; "" if the network is copied without a build.
        files: files to write for the network.
    """

    name: str
    file: str
    ensemble: str | None
    takes: str = ""
    steps: list[Part] = field(default_factory=list)
    labels: int = 0
    left: list[str] = field(default_factory=list)
    build: str = ""
    files: Files = field(default_factory=dict)


@dataclass(slots=True)
class Ensemble:
    """An ensemble, with the networks and steps that it runs, in order."""

    name: str
    parts: list[Part]
    note: str = ""
    files: Files = field(default_factory=dict)


@dataclass(slots=True)
class Migration:
    """The networks and ensembles of a repository, and the problems of its other models."""

    networks: list[Network]
    ensembles: list[Ensemble]
    problems: list[str]

    @property
    def files(self) -> Files:
        """All files to write into the project."""
        files: Files = {}
        for network in self.networks:
            files |= network.files
        for ensemble in self.ensembles:
            files |= ensemble.files
        return files

    def document(self) -> dict[str, Any]:
        """Return the migration as plain JSON types.

        Files are listed by name, without their content.
        """
        return {
            "networks": [asdict(each) | {"files": [*each.files]} for each in self.networks],
            "ensembles": [asdict(each) | {"files": [*each.files]} for each in self.ensembles],
            "problems": self.problems,
        }

    def lines(self) -> Iterator[str]:
        """Yield the lines of the report for the user."""
        for network in self.networks:
            of = f" of the ensemble {network.ensemble}" if network.ensemble else ""
            yield f"{network.name}{of}: {network.takes or network.file}"
            yield from (f"  to do: {text}" for text in network.left)
        for ensemble in self.ensembles:
            parts = ", ".join(part.name for part in ensemble.parts)
            yield f"{ensemble.name} runs {parts}{ensemble.note and f'; {ensemble.note}'}"
        yield from (f"problem: {text}" for text in self.problems)


def migrate(root: Path) -> Migration:
    """Read a Triton repository without running any of its code.

    Raises:
        NotFound: the directory does not exist, or contains no network that can be served.
    """
    root = root.resolve()
    every = read_models(root)
    models = {name: model for name, model in every.items() if not model.is_empty}
    problems = [f"{model.name}: {model.problem}" for model in models.values() if model.problem]
    empty = sorted(every.keys() - models.keys())
    problems += [
        f"{name} is not a model: it has neither config.pbtxt nor a folder {name}/1"
        for name in empty
    ]
    orders: dict[str, list[str]] = {}
    for name in models:
        try:
            orders[name] = order = order_models(models, name)
        except InvalidModel as error:
            problems.append(str(error))
            continue
        problems += [
            f"{name} runs the model {each!r}, which does not exist"
            for each in order
            if each not in models
        ]
    networks = _networks(models, orders, root)
    if not networks:
        why = "; ".join(problems) or "a model needs a file NAME/1/model.onnx"
        raise NotFound(f"{root} has no model that can be migrated: {why}")
    ensembles = [
        _ensemble(models, name, order, networks, root)
        for name, order in orders.items()
        if models[name].kind == "ensemble"
    ]
    used = {part.name for ensemble in ensembles for part in ensemble.parts}
    used |= {model.inside for model in models.values()}
    problems += [
        f"no ensemble runs {_part(model)}, so it is not migrated: move its preprocessing to "
        "--preprocess of the model's build (docs/reference/supported-models.md), or its logic to "
        "pipeline.toml (docs/how-to/pipelines.md)"
        for name, model in models.items()
        if model.kind in STEPS and name not in used
    ]
    return Migration([*networks.values()], ensembles, problems)


def _part(model: TritonModel) -> Part:
    return Part(model.name, model.kind, str(model.file or model.version))


def _networks(
    models: Mapping[str, TritonModel], orders: Mapping[str, list[str]], root: Path
) -> dict[str, Network]:
    """Describe each network once: as part of the longest ensemble that runs it, or alone."""
    networks: dict[str, Network] = {}
    for name in sorted(orders, key=lambda n: (-len(orders[n]), models[n].kind != "ensemble", n)):
        order = [models[each] for each in orders[name] if each in models]
        places = [at for at, model in enumerate(order) if model.kind not in STEPS]
        for start, at, end in zip([-1, *places], places, [*places[1:], None], strict=False):
            network = order[at]
            if network.name not in networks:
                before, after = order[start + 1 : at], order[at + 1 : end]
                whole = name if models[name].kind == "ensemble" else None
                networks[network.name] = _network(network, root, whole, before, after)
    return networks


def _network(
    model: TritonModel,
    root: Path,
    ensemble: str | None,
    before: Sequence[TritonModel],
    after: Sequence[TritonModel],
) -> Network:
    steps = list(dict.fromkeys(map(_part, (*before, *after))))
    network = Network(model.name, str(model.file or model.version), ensemble, steps=steps)
    source = f"models/{model.name}.onnx"
    if model.kind != "onnx" or model.file is None or model.problem:
        network.left.append(_foreign(model))
        _build(network, model, source, root)
    else:
        try:
            _use_onnx(network, model, model.file, root)
        except FoveaError as error:
            network.left.append(str(error))
            _build(network, model, source, root)
    if before:
        network.left.append(
            f"{', '.join(map(str, map(_part, before)))} runs before the model: describe its image "
            "preprocessing in a JSON file for --preprocess of the build "
            "(docs/reference/supported-models.md lists the fields)"
        )
    if after:
        network.left.append(
            f"{', '.join(map(str, map(_part, after)))} runs after the model: if it decodes boxes "
            "or suppresses duplicates, leave it out, because Fovea does both; requests set "
            "thresholds with options such as ?conf=0.4"
        )
    return network


def _foreign(model: TritonModel) -> str:
    target = f"put it at models/{model.name}.onnx, and run the build below"
    if model.problem:
        return f"{model.problem}; or {target}"
    if model.kind == "plan":
        return (
            f"{model.name} is a TensorRT engine, which cannot be converted to ONNX: find its "
            f"source ONNX file, {target} (for a GPU, add --backend tensorrt)"
        )
    if model.kind == "onnx":
        return f"{model.version} has no model.onnx (Triton's examples download this file): {target}"
    if model.kind == "unknown":
        return (
            f"{model.version} has no model.onnx or other known model file: get the ONNX file, "
            f"{target}"
        )
    return f"{model.name} uses the backend {model.kind}: export it to ONNX, {target}"


def _use_onnx(network: Network, model: TritonModel, file: Path, root: Path) -> None:
    """Plan the migration of an ONNX file.

    A network for images is built. A network for tensors is copied.

    Raises:
        FoveaError: one of the errors that `fovea build` raises for the file.
    """
    # Imported here, because onnx takes 0.3 s to import, and other migrations do not need it.
    import onnx

    from fovea_engines.onnx_graph.load import load
    from fovea_engines.onnx_graph.tensors import graph_inputs

    inputs = graph_inputs(load(file).proto)
    stored = onnx.load(file, load_external_data=False).graph.initializer
    is_split = any(each.data_location == each.EXTERNAL for each in stored)
    network.takes = ", ".join(f"{one.name} {one.dtype} {list(one.shape)}" for one in inputs)
    if not inputs or image_layout(inputs[0]) is None:
        network.takes += "; its inputs are tensors, not images, so it is copied without a build"
        if is_split:
            network.left.append(
                f"{file} stores its weights in other files: copy {model.folder} to repository/ "
                "yourself"
            )
        else:
            network.files |= _unchanged(model, file, root)
        return
    source = f"models/{model.name}.onnx"
    if is_split:
        source = str(file)
        network.left.append(f"{file} stores its weights in other files, so it is not copied")
    else:
        network.files[source] = file
    _build(network, model, source, root)


def _unchanged(model: TritonModel, file: Path, root: Path) -> Files:
    """Return the files of a tensor model to copy; a build accepts only models for images."""
    place = f"repository/{model.name}"
    version = model.version.name if model.version != model.folder else "1"
    if model.inside:
        return {f"{place}/{version}/{MODEL_FILE}": file}
    files: Files = {f"{place}/{version}/{model.config.default_model_filename or MODEL_FILE}": file}
    names = [tensor.label_filename for tensor in model.config.output if tensor.label_filename]
    for name in (CONFIG_FILE, *names):
        path = model.folder / name
        if is_below(model.folder, path) and (found := resolve_inside(root, path)) is not None:
            files[f"{place}/{name}"] = found
    return files


def _build(network: Network, model: TritonModel, source: str, root: Path) -> None:
    """Set the build command, and keep the fields of config.pbtxt that stay valid."""
    name, words = model.name, list[str]()
    if labels := _labels(network, model, root):
        network.labels = len(labels)
        network.files[f"models/{name}.txt"] = labels_text(labels).encode()
        words += ["--labels", f"models/{name}.txt"]
    if Path(source).stem != name:
        words += ["--name", name]
    if model.config.max_batch_size > 1:
        words += ["--max-batch", str(model.config.max_batch_size)]
    network.build = shlex.join(["fovea", "build", source, *words])
    _keep_config(network, model.config)


def _labels(network: Network, model: TritonModel, root: Path) -> tuple[str, ...]:
    names = [tensor.label_filename for tensor in model.config.output if tensor.label_filename]
    for name in dict.fromkeys(names):
        file = resolve_inside(root, model.folder / name)
        if file is None or file.stat().st_size > _MAX_LABELS:
            network.left.append(
                f"the label file {name} is missing, too large, or outside the repository: pass "
                "the file to the build with --labels"
            )
            continue
        try:
            return read_labels(file)
        except InvalidOption as error:
            network.left.append(str(error))
    return ()


def _keep_config(network: Network, config: ModelConfig) -> None:
    """Keep the response cache setting; report the fields of config.pbtxt that are lost."""
    given = {each.partition(".")[0] for each in fields_in_source(config)}
    if config.response_cache.enable:
        kept = ModelConfig(name=network.name, response_cache=config.response_cache)
        path = f"repository/{network.name}/{CONFIG_FILE}"
        network.files[path] = edit_text("", kept).encode()
    if tuned := sorted(given & _TUNED):
        network.left.append(
            f"not copied from config.pbtxt: {', '.join(tuned)}; `fovea tune` finds new values"
        )
    if lost := sorted(given - _WRITTEN - _TUNED):
        network.left.append(
            f"not copied from config.pbtxt: {', '.join(lost)}; if you need these fields, add them "
            f"to repository/{network.name}/config.pbtxt after the build"
        )


def _ensemble(
    models: Mapping[str, TritonModel],
    name: str,
    order: Sequence[str],
    networks: Mapping[str, Network],
    root: Path,
) -> Ensemble:
    parts = [_part(models[each]) for each in order if each in models]
    ensemble = Ensemble(name, parts)
    inner = [networks[each] for each in order if each in networks]
    is_whole = bool(inner) and len(inner) == len(order) and all(each.takes for each in inner)
    if any(part.kind in STEPS for part in parts):
        if len(inner) > 1:
            ensemble.note = (
                "if the first model is a detector and the others process its objects, write a "
                "pipeline.toml (docs/how-to/pipelines.md)"
            )
    elif is_whole and all(each.files and not each.build for each in inner):
        ensemble.note = "it is copied unchanged"
        ensemble.files = {
            f"repository/{name}/{CONFIG_FILE}": models[name].folder / CONFIG_FILE,
            # This empty file creates the directory of version 1, which a server requires for each
            # model.
            f"repository/{name}/1/.keep": b"",
        }
    elif is_whole:
        served = shlex.join(["fovea", "serve", str(root)])
        ensemble.note = f"it has no preprocessing steps, so `{served}` serves it unchanged"
    return ensemble
