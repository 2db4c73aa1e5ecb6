"""Streams frames over a WebSocket, with the package `websockets`."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from queue import SimpleQueue
from threading import Semaphore, Thread
from typing import Any

import httpx

from fovea_client import _base_client, _responses
from fovea_client._attempts import Policy
from fovea_client._exports import import_package
from fovea_client._requests import PredictOptions, images_path
from fovea_client.answers import ImageError, ImageResult
from fovea_client.errors import ConnectionFailed, ServerError, UnexpectedAnswer
from fovea_client.images import ImageSource, Url, check_channels, image_to_send

MAX_IN_FLIGHT = 8

Found = ImageResult | ImageError

# Statuses that concern all frames of a stream: the key is missing or not allowed, or the model is
# unknown.
_OF_ALL = (401, 403, 404)
# Options of the connection. The size of messages has no limit, because the client trusts the
# server that the caller chose. Compression is off, because encoded images hardly compress.
_CONNECTING: dict[str, Any] = {"max_size": None, "compression": None}


class Frames:
    """The settings of a stream, and the code that reads its messages. It does no I/O itself.

    Raises:
        ValueError: `in_flight` is not 1 to 8, `frame` is given, or `channels` is unknown.
        TypeError: an option is unknown.
        ImportError: `websockets` is not installed.
    """

    def __init__(self, policy: Policy, model: str, in_flight: int, options: PredictOptions) -> None:
        if not 1 <= in_flight <= MAX_IN_FLIGHT:
            raise ValueError(f"in_flight must be from 1 to {MAX_IN_FLIGHT}, not {in_flight}")
        if options.get("frame") is not None:
            raise ValueError("a stream numbers its frames itself: remove the option `frame`")
        self._channels = options.get("channels", "RGB")
        check_channels(self._channels)
        import_package("websockets", "websockets")
        self._policy, self._in_flight = policy, in_flight
        self.timeout_s = policy.timeout
        self.address = "ws" + policy.url[4:] + images_path(model, "stream", options)
        self.connecting = _CONNECTING | {
            "additional_headers": dict(policy.headers),
            "open_timeout": policy.timeout,
        }

    def read_credits(self, hello: str | bytes) -> int:
        """Return the largest number of frames in flight.

        This is the smaller of the caller's `in_flight` and the server's limit. The server sends its
        limit in the first message of the connection.

        Raises:
            UnexpectedAnswer: the message contains no limit.
        """
        try:
            return min(self._in_flight, int(json.loads(hello)["in_flight"]))
        except (LookupError, TypeError, ValueError) as error:
            raise UnexpectedAnswer(f"{self._policy.url} did not report its frame limit") from error

    def encode_image(self, image: ImageSource) -> bytes | ImageError:
        """Return the bytes of an image, or an `ImageError` if it cannot be read."""
        data = _base_client.encode_image(image, self._channels)
        if isinstance(data, Url):
            return ImageError(
                "invalid_image", "a stream does not accept image URLs: send the images themselves"
            )
        return data

    def read_result(self, image: ImageSource, text: str | bytes) -> Found:
        """Read the response to a frame.

        Raises:
            ServerError: the error would also concern all later frames.
        """
        content = text.encode() if isinstance(text, str) else text
        answer = json.loads(content)
        status = int(answer.get("status", 200))
        response = httpx.Response(status, content=content)
        try:
            result = _responses.prediction(response).images[0]
        except ServerError as error:
            if error.status in _OF_ALL:
                raise
            return ImageError(error.code, error.message)
        if isinstance(image, str | os.PathLike):
            _base_client.remember_source(result, partial(image_to_send, image))
        return result

    @contextmanager
    def translate_errors(self) -> Iterator[None]:
        """Translate errors of `websockets` and of sockets into errors of this client."""
        from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

        url = self._policy.url
        try:
            yield
        except ConnectionClosed as error:
            reason = error.rcvd.reason if error.rcvd and error.rcvd.reason else "it broke"
            raise ConnectionFailed(
                f"the connection to {url} ended ({reason})", unanswered=True
            ) from error
        except InvalidStatus as error:
            rejection = error.response
            headers = {"retry-after": rejection.headers.get("Retry-After", "")}
            response = httpx.Response(
                rejection.status_code, headers=headers, content=bytes(rejection.body or b"")
            )
            _responses.raise_for_status(response)
            raise UnexpectedAnswer(f"{url} does not accept WebSockets") from error
        except WebSocketException as error:
            raise UnexpectedAnswer(f"{url} is not a WebSocket server ({error})") from error
        except TimeoutError as error:
            raise ConnectionFailed(
                f"{url} did not respond within {self.timeout_s:g} s", unanswered=True
            ) from error
        except OSError as error:
            raise ConnectionFailed(
                f"cannot connect to {url} ({error}): is a server running there? `fovea serve` "
                "starts one"
            ) from error


def stream(frames: Frames, images: Iterable[ImageSource]) -> Iterator[Found]:
    """Send frames from a thread, and yield the result of each frame when it arrives."""
    from websockets.sync.client import connect

    # Frames in the order of the images. An entry is a sent image, an image with its error, the
    # error of `images`, or None at the end.
    begun: SimpleQueue[tuple[ImageSource, ImageError | None] | Exception | None] = SimpleQueue()
    left = False

    with frames.translate_errors():
        line = connect(frames.address, **frames.connecting)
    with line:
        with frames.translate_errors():
            room = Semaphore(frames.read_credits(line.recv(frames.timeout_s)))

        def send() -> None:
            try:
                each = iter(images)
                while room.acquire() and not left:
                    try:
                        image = next(each)
                    except StopIteration:
                        break
                    data = frames.encode_image(image)
                    if isinstance(data, bytes):
                        with frames.translate_errors():
                            line.send(data)
                    begun.put((image, data if isinstance(data, ImageError) else None))
                begun.put(None)
            except Exception as error:  # noqa: BLE001  raised later, in the order of the images
                begun.put(error)

        # A daemon thread does not delay the exit of Python, even if `images` blocks for long.
        Thread(target=send, daemon=True).start()
        try:
            while (one := begun.get()) is not None:
                if isinstance(one, Exception):
                    raise one
                image, failed = one
                if failed is None:
                    with frames.translate_errors():
                        text = line.recv(frames.timeout_s)
                    yield frames.read_result(image, text)
                else:
                    yield failed
                room.release()
        finally:
            left = True
            room.release()


async def astream(
    frames: Frames, images: Iterable[ImageSource] | AsyncIterable[ImageSource]
) -> AsyncIterator[Found]:
    """Send frames from a task, and yield the result of each frame when it arrives."""
    from websockets.asyncio.client import connect

    begun: asyncio.Queue[tuple[ImageSource, ImageError | None] | Exception | None] = asyncio.Queue()
    with frames.translate_errors():
        line = await connect(frames.address, **frames.connecting)
    async with line:
        with frames.translate_errors():
            async with asyncio.timeout(frames.timeout_s):
                room = asyncio.Semaphore(frames.read_credits(await line.recv()))

        async def send() -> None:
            try:
                await room.acquire()
                async for image in _base_client.iterate(images):
                    encode = partial(frames.encode_image, image)
                    data = await _base_client.build_in_thread(image, encode)
                    if isinstance(data, bytes):
                        with frames.translate_errors():
                            await line.send(data)
                    begun.put_nowait((image, data if isinstance(data, ImageError) else None))
                    await room.acquire()
                begun.put_nowait(None)
            except Exception as error:  # noqa: BLE001  raised later, in the order of the images
                begun.put_nowait(error)

        sending = asyncio.create_task(send())
        try:
            while (one := await begun.get()) is not None:
                if isinstance(one, Exception):
                    raise one
                image, failed = one
                if failed is None:
                    with frames.translate_errors():
                        async with asyncio.timeout(frames.timeout_s):
                            text = await line.recv()
                    yield frames.read_result(image, text)
                else:
                    yield failed
                room.release()
        finally:
            sending.cancel()
            await asyncio.wait([sending])
