"""Brings a setting into a repository: the version that it serves, and config.pbtxt."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import unified_diff

from fovea_engines.repository.config_pbtxt import CONFIG_FILE
from fovea_engines.repository.repository import ModelRepository
from fovea_preprocess.errors import Unavailable
from fovea_server.tune.setting import Candidate, Setting
from fovea_server.tune.trials import Trials, config_file_text


@dataclass(frozen=True, slots=True)
class Change:
    """The difference that a setting makes in a repository.

    Attributes:
        candidate: the version that it serves.
        publish: number that the version will get, as it was built just now; None where it is there.
        before: text of config.pbtxt.
        after: text of config.pbtxt with the setting.
    """

    candidate: Candidate
    publish: int | None
    before: str
    after: str

    @property
    def diff(self) -> str:
        """Differences of config.pbtxt, as `diff -u` shows them; empty without any."""
        lines = (self.before.splitlines(), self.after.splitlines())
        return "\n".join(unified_diff(*lines, CONFIG_FILE, CONFIG_FILE, n=1, lineterm=""))


def change(
    repository: ModelRepository,
    name: str,
    candidates: Sequence[Candidate],
    setting: Setting,
    trials: Trials,
) -> Change:
    """Work out what a setting changes for a model; nothing is written."""
    [candidate] = (each for each in candidates if each.version == setting.version)
    versions = repository.versions(name)
    publish = None if candidate.version in versions else repository.next_version(name)
    version = publish or candidate.version
    # The version is only pinned where the policy would serve another: later builds are served then.
    served = trials.config.served(sorted({*versions, version}))[-1]
    before = config_file_text(repository.root / name)
    text = trials.text(setting, pin=None if served == version else version)
    return Change(candidate, publish, before, text)


def write(repository: ModelRepository, name: str, change: Change) -> None:
    """Publish the version, if it is new, and write config.pbtxt, if it changes.

    Raises:
        Unavailable: another build took the version's number meanwhile.
    """
    if change.publish is not None:
        with repository.publish(name) as folder:
            shutil.copytree(change.candidate.folder, folder, dirs_exist_ok=True)
        version = repository.find(name, change.candidate.card.content_key)
        if version != change.publish:
            raise Unavailable(
                f"the engine became version {version} of {name}, as another build came between; "
                f"{CONFIG_FILE} is as it was: run the command again"
            )
    if change.diff:
        repository.write_beside(name, CONFIG_FILE, change.after)
