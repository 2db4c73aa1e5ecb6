"""Copies of a model that are served in other ways, while its own folder stays as it is."""

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
    """Yield the folder of a copy, alone in a repository, whose engines are links."""
    with temporary_folder("copy") as root:
        copy = root / folder.name
        copy.mkdir()
        for path in folder.iterdir():
            if path.name == "history.jsonl":
                continue  # another version may have been promoted
            if path.is_file():
                shutil.copyfile(path, copy / path.name)
            else:
                (copy / path.name).symlink_to(path.absolute())
        yield copy


@contextmanager
def serve_version(repository: ModelRepository, name: str, version: int) -> Iterator[Path]:
    """Yield a repository that serves a version of a model: the given one, or a copy."""
    served = repository.served(name)
    if version in served:
        yield repository.root
        return
    with copy_model(repository.root / name) as copy:
        path = copy / CONFIG_FILE
        config = replace(read_config(path), version_policy=serve_only(version))
        with suppress(NotFound):  # an engine that was not built by Fovea has no card
            before, after = (
                EngineCard.read(copy / str(each) / CARD_FILE) for each in (served[-1], version)
            )
            config = update_config(config, before, after)
        path.write_text(edit_text(config_source(path), config), "utf-8")
        yield copy.parent


def config_source(path: Path) -> str:
    """Return the text of a config.pbtxt; empty where there is no file."""
    return path.read_text(encoding="utf-8-sig") if path.is_file() else ""
