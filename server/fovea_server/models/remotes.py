"""The repositories of a server that are in stores."""

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
    """Follows every repository that is in a store.

    Args:
        only: names of the models that are pulled; None for all.
        described: of a version with a card nothing else is pulled.

    Attributes:
        folders: of all repositories, those of this machine as they were given.

    Raises:
        NotFound, Unavailable: a store cannot be read, and nothing was pulled from it before.
        InvalidOption: it takes packages that are not installed, or the cache cannot be written.
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
        """Begin to pull, and return at once."""
        for follower in self._followers:
            follower.start()

    def has(self, folder: Path) -> bool:
        """Return True for the folder of a model that was pulled."""
        return any(folder.parent == each.folder for each in self._followers)

    def wait(self) -> None:
        """Wait until every store was pulled once, or can be served as it was pulled before."""
        for follower in self._followers:
            follower.started.wait()

    def pull(self) -> None:
        """Pull everything that has changed now; faults are logged."""
        for follower in self._followers:
            follower.pull()

    @property
    def reason(self) -> str:
        """The reason why there is nothing to serve yet, which names no address; else empty."""
        waiting = [each for each in self._followers if not each.started.is_set()]
        if any(follower.fault for follower in waiting):
            return "the repository could not be pulled so far: the server's log says why"
        return "the repository is being pulled" if waiting else ""

    @property
    def unserved(self) -> list[str]:
        """List the models that the first pull refused and that are refused still, with reasons."""
        return [each for follower in self._followers for each in follower.unserved]

    @property
    def refused(self) -> dict[str, str]:
        """The models that were never pulled, with the reason why they are refused."""
        found: dict[str, str] = {}
        for follower in self._followers:
            found |= follower.refused_new
        return found

    def faults(self) -> int:
        """Count the stores that could not be pulled last time, and the models that are refused."""
        return sum(bool(each.fault) + len(each.refused) for each in self._followers)

    def stop(self) -> None:
        """Stop pulling."""
        for follower in self._followers:
            follower.stop()


def _follower(
    address: Address, settings: Settings, only: Collection[str] | None, described: bool
) -> MirrorFollower:
    # httpx takes a tenth of a second to import.
    from fovea_server.stores.follower import MirrorFollower
    from fovea_server.stores.mirror import Mirror

    cache = settings.repository_cache or Path.home() / ".cache" / "fovea" / "repositories"
    most_bytes = int(settings.repository_max_gb * 2**30)
    try:
        mirror = Mirror(address, cache, most_bytes, only, described=described)
    except (OSError, RuntimeError) as error:
        raise InvalidOption(
            f"models of {address} cannot be kept: {error}: give a folder that can be written with "
            "--repository-cache"
        ) from error
    polls = settings.model_control_mode is ModelControlMode.POLL
    return MirrorFollower(mirror, every_s=settings.repository_poll_secs, polls=polls)
