"""Fetches the images that a request names by address."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from fastapi import Request

from fovea_preprocess.errors import FetchRefused, FoveaError, QueueFull
from fovea_preprocess.size import size_text
from fovea_server.http.v1.body import Source, Url
from fovea_server.settings import Settings

if TYPE_CHECKING:
    from fovea_server.http.v1.fetch import Fetcher


async def fetched(request: Request, sources: list[Source]) -> list[bytes | FoveaError]:
    """Replace the addresses among the sources by the images there, or by why there is none."""
    fetcher: Fetcher | None = request.app.state.fetcher
    settings: Settings = request.app.state.service.settings
    left = settings.http_max_input_size
    few = asyncio.Semaphore(4)

    async def image(source: Source) -> bytes | FoveaError:
        nonlocal left
        if not isinstance(source, Url):
            return source
        if fetcher is None:
            return FetchRefused("this server does not fetch urls; start it with --allow-url")
        try:
            async with few:
                data = await fetcher.fetch(source.address, request.state.hold, source.authorization)
        except (FetchRefused, QueueFull) as error:
            return error
        left -= len(data)
        if left < 0:
            return FetchRefused(
                "the images of this request are over the limit of "
                f"{size_text(settings.http_max_input_size)} together: ask for fewer, or raise "
                "--http-max-input-size (bytes)"
            )
        return data

    return list(await asyncio.gather(*map(image, sources)))
