"""Finds the models of a repository, what each is, and its files; nothing leads out of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fovea_engines.repository.config_pbtxt import CONFIG_FILE, read_config
from fovea_engines.repository.model_config import ModelConfig
from fovea_engines.repository.repository import ModelRepository
from fovea_preprocess.errors import InvalidModel, InvalidOption

# Name of the file that each kind of model has in its version, by the kind that is reported.
_FILES = {"onnx": "model.onnx", "plan": "model.plan", "python": "model.py", "dali": "model.dali"}
# Backends and platforms of config.pbtxt -> the same kinds.
_BACKENDS = {"onnxruntime": "onnx", "onnxruntime_onnx": "onnx", "tensorrt": "plan"}
_BACKENDS |= {"tensorrt_plan": "plan", "python": "python", "dali": "dali", "ensemble": "ensemble"}
# Files of DALI's pipeline as it was written, which Triton serialises itself.
_DALI_SOURCES = ("dali.py", "pipeline.py")


@dataclass(frozen=True, slots=True)
class TritonModel:
    """A folder of the repository.

    Attributes:
        kind: "onnx", "plan", "python", "dali", "ensemble", or the name of another backend.
        folder: of the model, and `version` of its newest version; the same where it has none.
        file: the network, or the Python source of a step; None where there is none to read.
        problem: why the model cannot be read; "" where it can.
    """

    name: str
    kind: str
    folder: Path
    version: Path
    file: Path | None
    config: ModelConfig
    problem: str = ""

    @property
    def is_empty(self) -> bool:
        """True for a folder that has nothing of a model."""
        here = self.folder == self.version and self.file is None
        return here and not (self.folder / CONFIG_FILE).exists()


def triton_models(root: Path) -> dict[str, TritonModel]:
    """Read all models of a repository, by name; an unreadable one has a `problem`."""
    repository = ModelRepository(root)
    return {name: _model(repository, name) for name in repository.folders()}


def check_root(root: Path) -> None:
    """Raise InvalidOption for a folder that holds a repository, or a model of one."""
    repository = ModelRepository(root)
    if _is_model(root):
        raise InvalidOption(
            f"{root} is the folder of one model: give the repository, {root.parent}"
        )
    folders = [root / name for name in repository.folders()]
    if any(map(_is_model, folders)):
        return
    for folder in folders:
        if any(_is_model(folder / name) for name in ModelRepository(folder).folders()):
            raise InvalidOption(
                f"{root} has no model, and its folder {folder.name} has: give {folder}"
            )


def _is_model(folder: Path) -> bool:
    if (folder / CONFIG_FILE).exists():
        return True
    versions = (path for path in folder.glob("[1-9]*") if path.name.isdecimal())
    return any((path / file).exists() for path in versions for file in _FILES.values())


def inside(root: Path, path: Path) -> Path | None:
    """Return the file, without links, if it is one and lies below the root; else None."""
    try:
        real = path.resolve(strict=True)
        return real if real.is_file() and real.is_relative_to(root.resolve()) else None
    except (OSError, RuntimeError, ValueError):  # absent, a circle of links, a null byte
        return None


def _model(repository: ModelRepository, name: str) -> TritonModel:
    folder, config, problem = repository.root / name, ModelConfig(), ""
    if (folder / CONFIG_FILE).exists() and inside(repository.root, folder / CONFIG_FILE) is None:
        problem = f"{folder / CONFIG_FILE} leads out of the repository: put a copy in its place"
    else:
        try:
            config = read_config(folder / CONFIG_FILE)
        except InvalidModel as error:
            problem = str(error)
    versions = repository.versions(name)
    version = folder / str(versions[-1]) if versions else folder
    kind = _kind(config, version)
    file = None
    for path in _candidates(kind, config, folder, version):
        found = inside(repository.root, path)
        if found is not None:
            file = found
            break
        if path.exists() or ".." in path.parts:
            problem = problem or f"{path} leads out of the repository: put a copy in its place"
    return TritonModel(name, kind, folder, version, file, config, problem)


def _kind(config: ModelConfig, version: Path) -> str:
    for named in (config.platform, config.backend):
        if named:
            return _BACKENDS.get(named, named)
    if config.steps:
        return "ensemble"
    # Triton completes a configuration that is partial or absent by the file.
    present = (kind for kind, file in _FILES.items() if (version / file).exists())
    return next(present, "unknown")


def _candidates(kind: str, config: ModelConfig, folder: Path, version: Path) -> Iterator[Path]:
    if kind == "dali":
        for name in _DALI_SOURCES:
            yield from (version / name, folder / name)
        for place in (version, folder):
            yield from sorted(path for path in place.glob("[!.]*.py") if path.name != "__init__.py")
    elif kind in _FILES:
        name = config.default_model_filename or _FILES[kind]
        yield from (version / name, version / name / name)
        if kind == "python":
            yield folder / name
