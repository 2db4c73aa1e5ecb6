"""Fetches the images that a request names by URL."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from fovea_preprocess.errors import FetchRefused, FoveaError, QueueFull
from fovea_preprocess.text import size_text
from fovea_server.http.v1.body import Source, Url

if TYPE_CHECKING:
    from fovea_server.dataplane.fetch import Fetcher


class ImageSources:
    """Replaces the URLs in a request by the images at these URLs.

    Args:
        most_bytes: largest total size in bytes of the fetched images of one request.
        fetcher: HTTP client for images; None if the operator does not allow the server to fetch
            images.
    """

    def __init__(self, most_bytes: int, fetcher: Fetcher | None) -> None:
        self._most, self._fetcher = most_bytes, fetcher

    async def fetch_all(
        self, sources: Sequence[Source], hold: Callable[[int], None]
    ) -> list[bytes | bytearray | FoveaError]:
        """Replace each URL among the sources by its image, or by an error.

        `hold` counts the bytes of the images. If it raises QueueFull, this error replaces the
        image.
        """
        most = left = self._most
        few = asyncio.Semaphore(4)

        async def image(source: Source) -> bytes | bytearray | FoveaError:
            nonlocal left
            if not isinstance(source, Url):
                return source
            if self._fetcher is None:
                return FetchRefused("this server does not fetch URLs: start it with --allow-url")
            try:
                async with few:
                    data = await self._fetcher.fetch(source.address, hold, source.authorization)
            except (FetchRefused, QueueFull) as error:
                return error
            left -= len(data)
            if left < 0:
                return FetchRefused(
                    f"the images of this request together exceed the limit of {size_text(most)}: "
                    "send fewer images, or raise --http-max-input-size (bytes)"
                )
            return data

        if len(sources) == 1:
            return [await image(sources[0])]
        return list(await asyncio.gather(*map(image, sources)))

    async def close(self) -> None:
        """Close all connections."""
        if self._fetcher is not None:
            await self._fetcher.close()
