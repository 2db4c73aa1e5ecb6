"""The repositories of a server that are in remote stores."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from fovea_preprocess.errors import InvalidOption
from fovea_server.settings import ModelControlMode, Settings
from fovea_server.stores.address import Address

if TYPE_CHECKING:
    from fovea_server.stores.follower import MirrorFollower


class Remotes:
    """Copies every repository that is in a remote store to a local directory, and keeps it current.

    Args:
        settings: settings of the server.
        only: names of the models to pull; None for all models.
        described: True to pull only the card of a version, and not its engine, if the version has a
            card.

    Attributes:
        folders: local directories of all repositories, in the order of the settings.

    Raises:
        NotFound, Unavailable: a store cannot be read, and no earlier pull of it exists.
        InvalidOption: the store needs packages that are not installed, or the cache directory
            cannot be written.
    """

    def __init__(
        self, settings: Settings, only: Collection[str] | None = None, *, described: bool = False
    ) -> None:
        self._followers: list[MirrorFollower] = []
        folders: list[Path] = []
        for place in settings.model_repository:
            if isinstance(place, Path):
                folders.append(place)
            else:
                follower = _follower(place, settings, only, described)
                follower.connect()
                self._followers.append(follower)
                folders.append(follower.folder)
        self.folders = tuple(folders)

    def start(self) -> None:
        """Begin to pull changes in threads, and return at once."""
        for follower in self._followers:
            follower.start()

    def has(self, folder: Path) -> bool:
        """Return whether the directory of a model was pulled from a store."""
        return any(folder.parent == each.folder for each in self._followers)

    def wait(self) -> None:
        """Wait until every store was pulled once, or an earlier pull of it can be served."""
        for follower in self._followers:
            follower.started.wait()

    def pull(self) -> None:
        """Pull all changes now; log the faults."""
        for follower in self._followers:
            follower.pull()

    @property
    def reason(self) -> str:
        """The reason why no model can be served yet, without URLs.

        The reason is empty if models can be served.
        """
        waiting = [each for each in self._followers if not each.started.is_set()]
        if any(follower.fault for follower in waiting):
            return "the repository could not be pulled so far: see the server's log"
        return "the repository is being pulled" if waiting else ""

    @property
    def unserved(self) -> list[str]:
        """Models that the first pull rejected and that are still rejected, with their reasons."""
        return [each for follower in self._followers for each in follower.unserved]

    @property
    def refused(self) -> dict[str, str]:
        """Reasons for the rejection of models that were never pulled before, by model."""
        found: dict[str, str] = {}
        for follower in self._followers:
            found |= follower.refused_new
        return found

    def faults(self) -> int:
        """Count the stores whose last pull failed, plus the models that are rejected."""
        return sum(bool(each.fault) + len(each.refused) for each in self._followers)

    def stop(self) -> None:
        """Stop pulling changes."""
        for follower in self._followers:
            follower.stop()


def _follower(
    address: Address, settings: Settings, only: Collection[str] | None, described: bool
) -> MirrorFollower:
    # Imported here, because it imports httpx, which takes 0.1 s.
    from fovea_server.stores.follower import MirrorFollower
    from fovea_server.stores.mirror import Mirror

    cache = settings.repository_cache or Path.home() / ".cache" / "fovea" / "repositories"
    most_bytes = int(settings.repository_max_gb * 2**30)
    try:
        mirror = Mirror(address, cache, most_bytes, only, described=described)
    except (OSError, RuntimeError) as error:
        raise InvalidOption(
            f"models of {address} cannot be stored on this machine ({error}): set "
            "--repository-cache to a folder that can be written to"
        ) from error
    polls = settings.model_control_mode is ModelControlMode.POLL
    return MirrorFollower(mirror, every_s=settings.repository_poll_secs, polls=polls)
