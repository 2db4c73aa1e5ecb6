"""Reads a Triton repository: its models, and the order in which an ensemble runs its models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fovea_engines.repository.config_pbtxt import CONFIG_FILE, read_config
from fovea_engines.repository.model_config import ModelConfig
from fovea_engines.repository.repository import ModelRepository, check_name
from fovea_preprocess.errors import InvalidModel, InvalidOption

STEPS = ("python", "dali")
"""Kinds of models that run code before or after a neural network."""
MODEL_FILE = "model.onnx"
# Kind of a model -> name of its file in the directory of a version.
_FILES = {"onnx": MODEL_FILE, "plan": "model.plan", "python": "model.py", "dali": "model.dali"}
# Backend or platform in config.pbtxt -> kind of the model.
_BACKENDS = {"onnxruntime": "onnx", "onnxruntime_onnx": "onnx", "tensorrt": "plan"}
_BACKENDS |= {"tensorrt_plan": "plan", "python": "python", "dali": "dali", "ensemble": "ensemble"}
# Names of files with the source code of a DALI pipeline; Triton serialises such a pipeline itself.
_DALI_SOURCES = ("dali.py", "pipeline.py")
_MAX_STEPS = 100


@dataclass(frozen=True, slots=True)
class TritonModel:
    """A model of the repository, or a network inside the directory of a step that runs it.

    Attributes:
        name: name of the model.
        kind: "onnx", "plan", "python", "dali", "ensemble", or the name of another backend.
        folder: directory of the model.
        version: directory of the newest version; `folder` if the model has no version.
        file: file of the network, or the code of a step (a model that runs code); None if the file
            is missing.
        config: configuration of the model; empty if it cannot be read.
        problem: the reason why the model cannot be read; "" if it can be read.
        inside: name of the step whose directory contains the network; "" if the network is a model
            of its own.
    """

    name: str
    kind: str
    folder: Path
    version: Path
    file: Path | None
    config: ModelConfig
    problem: str = ""
    inside: str = ""

    @property
    def is_empty(self) -> bool:
        """True if the directory contains no version, no file and no configuration of a model."""
        here = self.folder == self.version and self.file is None
        return here and not (self.folder / CONFIG_FILE).exists()


def read_models(root: Path) -> dict[str, TritonModel]:
    """Read all models of a repository, by name.

    If a model cannot be read, its attribute `problem` has the reason.
    """
    repository = ModelRepository(root)
    models = {name: _read_model(repository, name) for name in repository.folders()}
    for step in [model for model in models.values() if model.kind == "python"]:
        for place in dict.fromkeys((step.version, step.folder)):
            for path in sorted(place.glob("[!.]*.onnx")):
                file = resolve_inside(root, path)
                with suppress(InvalidOption):
                    name = check_name(path.stem)
                    if file is not None and name not in models:
                        models[name] = TritonModel(
                            name,
                            "onnx",
                            step.folder,
                            step.version,
                            file,
                            ModelConfig(),
                            inside=step.name,
                        )
    return models


def check_root(root: Path) -> None:
    """Raise InvalidOption if the directory is a single model, or if it contains the repository."""
    repository = ModelRepository(root)
    if _is_model(root):
        raise InvalidOption(f"{root} is a single model: give its repository, {root.parent}")
    folders = [root / name for name in repository.folders()]
    if any(map(_is_model, folders)):
        return
    for folder in folders:
        if any(_is_model(folder / name) for name in ModelRepository(folder).folders()):
            raise InvalidOption(
                f"{root} has no model, but its folder {folder.name} has: give {folder}"
            )


def is_below(folder: Path, path: Path) -> bool:
    """Return whether a path is below a directory; links are not resolved."""
    return path.is_relative_to(folder) and ".." not in path.parts


def resolve_inside(root: Path, path: Path) -> Path | None:
    """Return the resolved path if the file exists and is below the root; otherwise return None."""
    try:
        real = path.resolve(strict=True)
        return real if real.is_file() and real.is_relative_to(root.resolve()) else None
    except (OSError, RuntimeError, ValueError):  # missing file, circular link, or null byte
        return None


def order_models(models: Mapping[str, TritonModel], name: str) -> list[str]:
    """Return the models that a model runs, in order, including the models of inner ensembles.

    Raises:
        InvalidModel: the steps of an ensemble wait for one another, or no step writes a tensor that
            another step reads.
    """
    return _order(models, name, (), [])


def _order(
    models: Mapping[str, TritonModel], name: str, above: tuple[str, ...], visits: list[str]
) -> list[str]:
    model = models.get(name)
    visits.append(name)
    if len(visits) > _MAX_STEPS:
        raise InvalidModel(
            f"ensemble {(*above, name)[0]} exceeds the limit of {_MAX_STEPS} steps: remove steps"
        )
    if name in above:
        raise InvalidModel(
            f"ensemble {name} runs itself ({' -> '.join((*above, name))}): correct its config.pbtxt"
        )
    if model is None or model.kind != "ensemble":
        return [name, *(other for other, each in models.items() if each.inside == name)]
    there = {tensor.name for tensor in model.config.input}
    left, order = list(model.config.steps), list[str]()
    while left:
        ready = [step for step in left if there.issuperset(step.input_map.values())]
        if not ready:
            waiting = ", ".join(step.model_name for step in left)
            missing = {v for step in left for v in step.input_map.values()} - there
            raise InvalidModel(
                f"the steps {waiting} of ensemble {name} cannot run, because no input or earlier "
                f"step provides {', '.join(sorted(missing))}: correct its config.pbtxt"
            )
        for step in ready:
            there.update(step.output_map.values())
            order += _order(models, step.model_name, (*above, name), visits)
        left = [step for step in left if step not in ready]
    return order


def _is_model(folder: Path) -> bool:
    if (folder / CONFIG_FILE).exists():
        return True
    versions = (path for path in folder.glob("[1-9]*") if path.name.isdecimal())
    return any((path / file).exists() for path in versions for file in _FILES.values())


def _read_model(repository: ModelRepository, name: str) -> TritonModel:
    folder, config, problem = repository.root / name, ModelConfig(), ""
    source = folder / CONFIG_FILE
    if source.exists() and resolve_inside(repository.root, source) is None:
        problem = f"{source} links to a file outside the repository: replace the link with a copy"
    else:
        try:
            config = read_config(source)
        except InvalidModel as error:
            problem = str(error)
    versions = repository.versions(name)
    version = folder / str(versions[-1]) if versions else folder
    kind = _kind(config, version)
    file: Path | None = None
    for path in _candidates(kind, config, folder, version):
        file = resolve_inside(repository.root, path) if is_below(folder, path) else None
        if file is not None:
            break
        if path.exists() or ".." in path.parts:
            problem = problem or (
                f"{path} is outside the repository: copy the file into the model's folder"
            )
    return TritonModel(name, kind, folder, version, file, config, problem)


def _kind(config: ModelConfig, version: Path) -> str:
    for named in (config.platform, config.backend):
        if named:
            return _BACKENDS.get(named, named)
    if config.steps:
        return "ensemble"
    # Triton completes a partial or missing configuration from the model's file, so the file
    # determines the kind.
    present = (kind for kind, file in _FILES.items() if (version / file).exists())
    return next(present, "unknown")


def _candidates(kind: str, config: ModelConfig, folder: Path, version: Path) -> Iterator[Path]:
    if kind == "dali":
        for name in _DALI_SOURCES:
            yield from (version / name, folder / name)
    if kind in _FILES:
        name = config.default_model_filename or _FILES[kind]
        yield from (version / name, version / name / name)
        if kind == "python":
            yield folder / name
