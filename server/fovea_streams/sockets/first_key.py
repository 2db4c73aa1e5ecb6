"""The key of a page, which cannot set headers: the first message has it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import orjson

from fovea_preprocess.errors import BodyTooLarge, Unauthenticated
from fovea_server.json_text import MOST_OF_STRANGERS, parse_json
from fovea_streams.sockets.socket import Socket

KEY_WAIT_S = 5.0

_HINT = f'send {{"api_key": KEY}} as the first message, within {KEY_WAIT_S:g} s'

Handler = Callable[[Socket], Coroutine[Any, Any, str]]


def with_first_key(
    handler: Handler, admit: Callable[[], None], waits: Callable[[int], None]
) -> Handler:
    """Return a handler whose client sends its key first; `admit` checks it, or raises.

    `waits` is called with 1 while it waits, and then with -1.
    """

    async def first(socket: Socket) -> str:
        waits(1)
        try:
            async with asyncio.timeout(KEY_WAIT_S):
                message = await socket.receive()
        except TimeoutError:
            raise Unauthenticated(f"no key came: {_HINT}") from None
        finally:
            waits(-1)
        socket.give_back(message)
        key = key_in(message.content) if isinstance(message.content, str) else None
        if key is None:
            raise Unauthenticated(f"this server asks for a key: {_HINT}")
        socket.call.field_key = key
        admit()
        return await handler(socket)

    return first


def key_in(text: str) -> str | None:
    """Return the key in a message; None if it is another one."""
    try:
        found = parse_json(text.encode(), MOST_OF_STRANGERS)
    except (orjson.JSONDecodeError, BodyTooLarge):
        return None
    key = found.get("api_key") if isinstance(found, dict) else None
    return key if isinstance(key, str) else None
