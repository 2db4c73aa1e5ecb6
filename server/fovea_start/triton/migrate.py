"""Reads a repository of Triton and says how its networks go on without their steps."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fovea_engines.repository.config_pbtxt import CONFIG_FILE, fields_in_source
from fovea_engines.repository.labels import labels_text, read_labels
from fovea_engines.repository.model_config import ModelConfig
from fovea_lab.config_edit import edited_text
from fovea_preprocess.errors import FoveaError, InvalidModel, InvalidOption, NotFound
from fovea_start.triton.chain import in_order
from fovea_start.triton.code import StepCode
from fovea_start.triton.fields import ReadPreprocess, read_preprocess
from fovea_start.triton.findings import Clue, findings, named_constants
from fovea_start.triton.models import TritonModel, inside, triton_models
from fovea_start.triton.network import MiddleNetwork

_STEPS = ("python", "dali")
_MOST_LABELS = 1 << 20
# Fields that a build writes itself, and one that holds for Fovea as it is.
_WRITTEN = {"name", "platform", "backend", "input", "output", "max_batch_size", "response_cache"}

_TUNED = {"instance_group", "dynamic_batching", "optimization"}


@dataclass(slots=True)
class StepReport:
    """A step before or after a network: what it does, where that stands, or why it is not read."""

    name: str
    kind: str
    findings: list[Clue] = field(default_factory=list)
    constants: list[Clue] = field(default_factory=list)
    problem: str = ""

    @property
    def does(self) -> str:
        """Name the kinds of what it does, in their order."""
        kinds = dict.fromkeys(each.kind for each in self.findings if each.kind not in ("?", ""))
        return ", ".join(kinds) or "unknown"


@dataclass(slots=True)
class MigratedNetwork:
    """A network, the steps around it, and how to go on.

    `files` has what is to be written: path in the project -> content, or the file to copy.
    """

    name: str
    file: str
    ensemble: str | None
    takes: str = ""
    family: str | None = None
    steps: list[StepReport] = field(default_factory=list)
    preprocess: Mapping[str, object] = field(default_factory=dict)
    labels: int = 0
    options: dict[str, float | bool] = field(default_factory=dict)
    contradictions: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    build: str = ""
    files: dict[str, bytes | Path] = field(default_factory=dict)


def migrate(root: Path) -> tuple[list[MigratedNetwork], list[str]]:
    """Read a repository; return its networks, and what is wrong with other models of it.

    Raises:
        NotFound: it is no folder, or has no network that could be served.
    """
    root = root.resolve()
    every = triton_models(root)
    models = {name: model for name, model in every.items() if not model.is_empty}
    problems = [f"{model.name}: {model.problem}" for model in models.values() if model.problem]
    empty = sorted(every.keys() - models.keys())
    problems += [f"{name} is no model: no config.pbtxt and no {name}/1" for name in empty]
    reports = {name: _report(model, root) for name, model in models.items()}
    for model in [each for each in models.values() if each.kind in _STEPS]:
        problems += _add_loaded(model, root, models, reports)
    found: dict[str, MigratedNetwork] = {}
    orders: dict[str, list[str]] = {}
    for name in models:
        try:
            orders[name] = in_order(models, name)
        except InvalidModel as error:
            problems.append(str(error))
    # The longest first: an ensemble has what its parts lack.
    for name in sorted(orders, key=lambda n: (-len(orders[n]), models[n].kind not in _STEPS, n)):
        order = orders[name]
        problems += [f"{name}: there is no model {m!r}" for m in order if m not in models]
        parts = [part for each in order if each in models for part in _parts(reports[each], models)]
        networks = [at for at, part in enumerate(parts) if isinstance(part, str)]
        for start, at, end in zip([-1, *networks], networks, [*networks[1:], None], strict=False):
            model = models[str(parts[at])]
            if model.name not in found:
                before, after = _around(parts[start + 1 : at]), _around(parts[at + 1 : end])
                whole = name if len(parts) > 1 or models[name].kind == "ensemble" else None
                found[model.name] = _network(model, root, whole, before, after, reports)
    if not found:
        why = "; ".join(problems) or "a model has a folder NAME/1 with model.onnx in it"
        raise NotFound(f"{root} has no network to go on with: {why}")
    return list(found.values()), problems


def _report(model: TritonModel, root: Path) -> StepReport:
    """Read the source of a step."""
    report = StepReport(model.name, model.kind, problem=model.problem)
    if model.kind in _STEPS and model.file is None:
        lacks = "model.py" if model.kind == "python" else "source of its pipeline (dali.py)"
        report.problem = report.problem or f"there is no {lacks}, and nothing else can be read"
    elif model.kind in _STEPS and model.file is not None:
        values = {name: one.string_value for name, one in model.config.parameters.items()}
        try:
            step = StepCode(model.file, root, values)
            report.findings, report.constants = [*findings(step)], [*named_constants(step)]
        except InvalidModel as error:
            report.problem = str(error)
        except RecursionError:
            report.problem = f"{model.file} nests too deep to be read"
    return report


def _add_loaded(
    model: TritonModel,
    root: Path,
    models: dict[str, TritonModel],
    reports: dict[str, StepReport],
) -> Iterator[str]:
    """Add the networks that a step runs itself; yield what others it loads."""
    for step in reports[model.name].findings:
        if step.kind == "loads" and (loaded := _loaded(model, root, step)) is not None:
            models.setdefault(loaded.name, loaded)
            reports.setdefault(loaded.name, _report(loaded, root))
        elif step.kind == "loads":
            yield f"{step.where} loads a network that is not ONNX here: {step.code}"


def _loaded(model: TritonModel, root: Path, step: Clue) -> TritonModel | None:
    """Return the network that a step runs itself, if its ONNX file lies with the step."""
    name = Path(str(step.values.get("file")))
    for place in (model.version, model.folder):
        if name.suffix == ".onnx" and (file := inside(root, place / name.name)) is not None:
            return TritonModel(name.stem, "onnx", model.folder, model.version, file, ModelConfig())
    return None


Part = str | tuple[StepReport, Clue | None]


def _parts(report: StepReport, models: Mapping[str, TritonModel]) -> Iterator[Part]:
    """Yield the findings of a step, and names of networks: its own, or those that it asks for."""
    if report.kind not in _STEPS:
        yield report.name
        return
    yield report, None
    loaded = ""
    for found in report.findings:
        loaded = Path(str(found.values["file"])).stem if found.kind == "loads" else loaded
        asked = str(found.values.get("model", loaded))
        if found.kind == "network" and asked in models and models[asked].kind not in _STEPS:
            yield asked
        yield report, found


def _around(parts: Sequence[Part]) -> list[tuple[StepReport, Clue | None]]:
    return [part for part in parts if not isinstance(part, str)]


def _network(
    model: TritonModel,
    root: Path,
    ensemble: str | None,
    before: Sequence[tuple[StepReport, Clue | None]],
    after: Sequence[tuple[StepReport, Clue | None]],
    reports: Mapping[str, StepReport],
) -> MigratedNetwork:
    steps = list({id(step): step for step, _ in (*before, *after)}.values())
    file = model.file or model.version
    report = MigratedNetwork(model.name, str(file), ensemble, steps=steps)
    read = read_preprocess([found for _, found in before if found is not None])
    report.left += [f"{step.name}: {step.problem}" for step in steps if step.problem]
    report.left += [f"{s.name} ({s.kind}) is not understood" for s in steps if s.does == "unknown"]
    report.left += read.left
    last = list({id(step): step for step, _ in after}.values())
    report.options = _options(last)
    labels = _labels(model, root, last, report)
    network = None
    if model.kind == "onnx" and model.file is not None and not model.problem:
        try:
            network = MiddleNetwork.read(model.file)
        except FoveaError as error:
            report.left.append(str(error))
    else:
        report.left.append(_foreign(model))
    _settle(report, model, read, labels, network)
    return report


def _foreign(model: TritonModel) -> str:
    target = f"put it at models/{model.name}.onnx, and run the build below"
    if model.problem:
        return f"{model.problem}; or {target}"
    if model.kind == "plan":
        return (
            f"{model.name} is an engine of TensorRT, which cannot be turned back into ONNX: find "
            f"the ONNX file that it was built from, {target} (on its GPU with --backend tensorrt)"
        )
    if model.kind == "onnx":
        return f"{model.version} has no model.onnx (Triton's examples fetch theirs): {target}"
    if model.kind == "unknown":
        return f"{model.version} has no file that is known, such as model.onnx: {target}"
    return f"{model.name} is of the backend {model.kind}: export it to ONNX, {target}"


def _options(steps: Sequence[StepReport]) -> dict[str, float | bool]:
    """Return the options of requests that stand for constants after the network: calls go first."""
    options: dict[str, float | bool] = {}
    for found in [f for s in steps for f in s.findings] + [f for s in steps for f in s.constants]:
        for name in ("conf", "iou"):
            value = found.values.get(name)
            if isinstance(value, float) and 0 < value < 1:
                options.setdefault(name, value)
        if found.values.get("agnostic"):
            options["agnostic"] = True
    return options


def _labels(
    model: TritonModel, root: Path, steps: Sequence[StepReport], report: MigratedNetwork
) -> tuple[str, ...]:
    names = [tensor.label_filename for tensor in model.config.output if tensor.label_filename]
    places = [model.folder]
    for step in steps:
        places += [root / step.name, *sorted(p for p in (root / step.name).glob("*") if p.is_dir())]
        for found in (*step.findings, *step.constants):
            if isinstance(given := found.values.get("names"), tuple):
                return tuple(map(str, given))
            if found.kind == "labels":
                names.append(str(found.values["file"]))
    for name in dict.fromkeys(names):
        # Paths of the container are looked up by their last part.
        for place in places:
            file = inside(root, place / name) or inside(root, place / Path(name).name)
            if file is not None and file.stat().st_size < _MOST_LABELS:
                try:
                    return _read_labels(file)
                except (InvalidOption, ValueError) as error:
                    report.left.append(f"{file} is no list of labels ({error})")
                break
        else:
            report.left.append(f"{name} is not in the repository: give it to the build as --labels")
    return ()


def _read_labels(file: Path) -> tuple[str, ...]:
    if file.suffix != ".json":
        return read_labels(file)
    document = json.loads(file.read_bytes())
    if isinstance(document, dict):
        by_id = all(str(key).isdecimal() for key in document)
        pairs = document.items() if by_id else ((v, k) for k, v in document.items())
        document = [name for _, name in sorted(pairs, key=lambda pair: int(pair[0]))]
    return tuple(map(str, document))


def _settle(
    report: MigratedNetwork,
    model: TritonModel,
    read: ReadPreprocess,
    labels: tuple[str, ...],
    network: MiddleNetwork | None,
) -> None:
    """Decide what is written for a network, and the build that takes it."""
    name, report.preprocess = model.name, read.fields
    source, build = f"models/{name}.onnx", list[str]()
    if network is not None and network.image is None and not report.steps:
        _settle_tensors(report, model, network)
        return
    if network is not None and model.file is not None:
        report.takes, report.family = network.takes, network.family
        report.contradictions += network.contradictions(read, len(labels))
        report.preprocess = {} if network.image is None else network.kept(read)
        if network.classes not in (None, len(labels)):
            labels = ()
        if network.labels and not labels:
            report.labels = len(network.labels)
        if network.external:
            source = str(model.file)
            report.left.append(f"{model.file} has weights in other files, so it stays in its place")
        else:
            report.files[source] = model.file
        if network.open and read.size:
            build += ["--size", "{}x{}".format(*read.size)]
    if report.preprocess:
        report.files[f"models/{name}.json"] = (
            f"{json.dumps(report.preprocess, indent=2)}\n".encode()
        )
        build += ["--preprocess", f"models/{name}.json"]
    if labels:
        report.labels = len(labels)
        report.files[f"models/{name}.txt"] = labels_text(labels).encode()
        build += ["--labels", f"models/{name}.txt"]
    if Path(source).stem != name:
        build += ["--name", name]
    report.build = shlex.join(["fovea", "build", source, *build])
    _keep_config(report, model.config)


def _settle_tensors(report: MigratedNetwork, model: TritonModel, network: MiddleNetwork) -> None:
    """Keep a network of tensors as it is, with its configuration: a build takes images."""
    assert model.file is not None, "it was read"
    report.takes = f"{network.takes}; it takes tensors, and goes on without a build"
    if network.external:
        report.left.append(
            f"{model.file} has weights in other files: copy {model.folder} to repository/ yourself"
        )
        return
    place = f"repository/{model.name}"
    version = model.version.name if model.version != model.folder else "1"
    report.files[f"{place}/{version}/{model.file.name}"] = model.file
    if (config := model.folder / CONFIG_FILE).is_file():
        report.files[f"{place}/{CONFIG_FILE}"] = config


def _keep_config(report: MigratedNetwork, config: ModelConfig) -> None:
    """Keep what a build does not write itself and holds here; name what does not."""
    given = {each.partition(".")[0] for each in fields_in_source(config)}
    if config.response_cache.enable:
        kept = ModelConfig(name=report.name, response_cache=config.response_cache)
        path = f"repository/{report.name}/config.pbtxt"
        report.files[path] = edited_text("", kept).encode()
    if tuned := sorted(given & _TUNED):
        report.left.append(
            f"not kept of config.pbtxt: {', '.join(tuned)}; `fovea tune` finds its own"
        )
    if lost := sorted(given - _WRITTEN - _TUNED):
        report.left.append(
            f"not kept of config.pbtxt: {', '.join(lost)}; after the build, write it into "
            f"repository/{report.name}/config.pbtxt if you need it"
        )
