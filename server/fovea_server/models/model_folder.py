"""Checks files that all versions of a model share, and finds the directory of one version."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from fovea_engines.repository.repository import ModelRepository
from fovea_preprocess.errors import FoveaError, InvalidOption
from fovea_server.models.config.capture_rules import SETTINGS_FILE, check_rules
from fovea_server.pipelines.recipe import PIPELINE_FILE, Pipeline, check_reference, is_pipeline
from fovea_server.pipelines.reference import REFERENCE_FILE


def find_faults(folder: Path, labels: Sequence[str] | None) -> Iterator[str]:
    """Yield the faults in fovea.toml and reference.json; a server serves the model despite them.

    Args:
        folder: directory of the model.
        labels: class names, in the order of class ids; None if the names are unknown.
    """
    try:
        if (folder / SETTINGS_FILE).is_file():
            check_rules(folder, labels)
    except FoveaError as error:
        yield str(error)
    try:
        if (folder / REFERENCE_FILE).is_file():
            check_reference(folder)
    except FoveaError as error:
        yield str(error)


def version_folder(path: Path, version: int | None = None) -> Path:
    """Return the directory of a model's version, by default of the current version.

    Args:
        path: directory of the model, or directory of one version.
        version: number of the version.

    Raises:
        InvalidOption: `path` is a file, or the model is a pipeline, which has no engine.
        InvalidModel: config.pbtxt or the history is damaged.
        NotFound: the version does not exist.
    """
    if not path.is_dir():
        raise InvalidOption(
            f"{path} is a file: build it with `fovea build`, then give the model's name"
        )
    path = path.absolute()
    if is_pipeline(path):
        first = Pipeline.read(path).models[0]
        raise InvalidOption(
            f"{path.name} is a pipeline ({PIPELINE_FILE}) and has no engine: give its detector "
            f"{first}, or a server that runs the pipeline (--url)"
        )
    around = ModelRepository(path.parent)
    if version is None and not around.versions(path.name):
        return path
    return around.folder(path.name, version or around.served(path.name)[-1])
