"""Fetches the images that a request names by address."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from fovea_preprocess.entry_points import Group, load
from fovea_preprocess.errors import FetchRefused, FoveaError, QueueFull
from fovea_preprocess.size import size_text
from fovea_server.dataplane.reach import Reach
from fovea_server.http.v1.body import Source, Url
from fovea_server.settings import Settings


class ImageFetcher(Protocol):
    """Fetches images; `close` it after the last one."""

    async def fetch(
        self, address: str, hold: Callable[[int], None], authorization: str | None = None
    ) -> bytes:
        """Fetch the bytes at an address, and `hold` them as they arrive; raises FetchRefused."""

    async def close(self) -> None:
        """Close the connections."""


class MakeFetcher(Protocol):
    """The ability `fetcher`."""

    def __call__(self, *, max_bytes: int, timeout_s: float, reach: Reach) -> ImageFetcher:
        """Take up connections."""


class ImageSources:
    """Replaces addresses by the images there, if the operator allows it."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._fetcher: ImageFetcher | None = None

    def open(self) -> None:
        """Take up connections, if the operator allows it."""
        settings = self._settings
        if settings.allow_url:
            # Here, because httpx costs a tenth of a second that most servers need not pay.
            make: MakeFetcher = load(Group.ABILITIES, "fetcher")
            self._fetcher = make(
                max_bytes=settings.max_image_bytes,
                timeout_s=settings.url_timeout_s,
                reach=Reach.of(settings),
            )

    async def fetched(
        self, sources: Sequence[Source], hold: Callable[[int], None]
    ) -> list[bytes | bytearray | FoveaError]:
        """Replace the addresses among the sources by the images there, or by why there is none.

        `hold` counts their bytes, and may raise QueueFull.
        """
        most = left = self._settings.http_max_input_size
        few = asyncio.Semaphore(4)

        async def image(source: Source) -> bytes | bytearray | FoveaError:
            nonlocal left
            if not isinstance(source, Url):
                return source
            if self._fetcher is None:
                return FetchRefused("this server does not fetch urls; start it with --allow-url")
            try:
                async with few:
                    data = await self._fetcher.fetch(source.address, hold, source.authorization)
            except (FetchRefused, QueueFull) as error:
                return error
            left -= len(data)
            if left < 0:
                return FetchRefused(
                    "the images of this request are over the limit of "
                    f"{size_text(most)} together: ask for fewer, or raise "
                    "--http-max-input-size (bytes)"
                )
            return data

        if len(sources) == 1:
            return [await image(sources[0])]
        return list(await asyncio.gather(*map(image, sources)))

    async def close(self) -> None:
        """Close the connections."""
        if self._fetcher is not None:
            await self._fetcher.close()
            self._fetcher = None
