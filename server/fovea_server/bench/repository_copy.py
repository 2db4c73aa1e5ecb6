"""Copies a model to try other configurations; the model's own directory does not change."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from fovea_engines.repository.card import CARD_FILE, EngineCard
from fovea_engines.repository.config_edit import edit_text
from fovea_engines.repository.config_pbtxt import CONFIG_FILE, read_config, update_config
from fovea_engines.repository.locking import temporary_folder
from fovea_engines.repository.model_config import serve_only
from fovea_engines.repository.repository import ModelRepository
from fovea_preprocess.errors import NotFound


@contextmanager
def copy_model(folder: Path) -> Iterator[Path]:
    """Yield the directory of a copy of a model; the copy is the only model in its repository.

    The copy has links to the versions, so that no engine is copied.
    """
    with temporary_folder("copy") as root:
        copy = root / folder.name
        copy.mkdir()
        for path in folder.iterdir():
            if path.name == "history.jsonl":
                continue  # the promotion history may select another version
            if path.is_file():
                shutil.copyfile(path, copy / path.name)
            else:
                (copy / path.name).symlink_to(path.absolute())
        yield copy


@contextmanager
def serve_version(repository: ModelRepository, name: str, version: int) -> Iterator[Path]:
    """Yield a repository that serves a version of a model.

    This is the given repository if it serves the version already, otherwise a copy.
    """
    served = repository.served(name)
    if version in served:
        yield repository.root
        return
    with copy_model(repository.root / name) as copy:
        path = copy / CONFIG_FILE
        config = replace(read_config(path), version_policy=serve_only(version))
        with suppress(NotFound):  # an engine that Fovea has not built has no card
            before, after = (
                EngineCard.read(copy / str(each) / CARD_FILE) for each in (served[-1], version)
            )
            config = update_config(config, before, after)
        path.write_text(edit_text(config_source(path), config), "utf-8")
        yield copy.parent


def config_source(path: Path) -> str:
    """Return the text of a config.pbtxt; empty if the file is missing."""
    return path.read_text(encoding="utf-8-sig") if path.is_file() else ""
