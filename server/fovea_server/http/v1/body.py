"""Receives, decompresses and parses request bodies with images, texts or JSON."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import orjson
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import Field, File, FormParser, parse_options_header
from starlette.concurrency import run_in_threadpool

from fovea_engines.results.options import PredictOptions
from fovea_preprocess.errors import BodyTooLarge, FoveaError, InvalidOption, InvalidRequest
from fovea_preprocess.image import looks_encoded
from fovea_preprocess.text import counted, size_text
from fovea_server.dataplane.options import FORMER, parse_options
from fovea_server.http.base64_text import base64_image
from fovea_server.http.receive import Watch, unpack
from fovea_server.json_text import MAX_WEIGHT, JsonThread, parse_json
from fovea_server.settings import Settings

if TYPE_CHECKING:
    from starlette.requests import Request

_MAX_FIELDS = 64
_SHAPE = 'write each image as {"data": BASE64} or {"url": URL}'


async def read_body(
    request: Request, watch: Watch, hold: Callable[[int], None], settings: Settings
) -> bytes:
    """Receive and decompress a body, which may be empty.

    The size limit holds before and after decompression.

    Args:
        request: request with the body.
        watch: object that receives the body.
        hold: function that counts the decompressed bytes; it may raise QueueFull.
        settings: settings of the server, which have the size limit.

    Raises:
        InvalidRequest: the body does not match its Content-Encoding, or the Content-Encoding is
            unknown.
        BodyTooLarge, BodyTimeout, QueueFull, ClientLeft: see `Watch.body`.
    """
    max_bytes = settings.http_max_input_size
    encoding = request.headers.get("content-encoding", "identity")
    check_encoding(encoding)
    refused = partial(too_large, max_bytes)
    declared = request.headers.get("content-length", "0")
    if declared.isdigit() and int(declared) > max_bytes:
        raise refused()
    body = await watch.body(max_bytes, refused)
    request.state.body_read = True
    if encoding == "identity" or not body:
        return bytes(body)
    try:
        return bytes(await unpack(body, hold, max_bytes, refused))
    except zlib.error:
        raise InvalidRequest(
            f"the Content-Encoding is {encoding}, but the body is not valid {encoding}"
        ) from None


def check_encoding(encoding: str | None) -> None:
    """Raise InvalidRequest for an unsupported Content-Encoding."""
    if encoding not in (None, "identity", "gzip", "deflate"):
        raise InvalidRequest(
            f"unknown Content-Encoding '{encoding}': send the body without compression, or use "
            "gzip or deflate"
        )


def too_large(limit: int) -> BodyTooLarge:
    """Return the error for a body that exceeds the limit."""
    return BodyTooLarge(
        f"the body exceeds the limit of {size_text(limit)}: send less data per request, or raise "
        "--http-max-input-size (bytes)"
    )


def empty() -> InvalidRequest:
    """Return the error for an empty body in a request that needs an image."""
    return InvalidRequest("the body is empty; send an image, a form with images, or JSON")


@dataclass(frozen=True, slots=True)
class Url:
    """URL of an image to fetch.

    `authorization` is the Authorization header for the host of the URL.
    """

    address: str
    authorization: str | None = None


Source = bytes | bytearray | Url | FoveaError


def parse_body(
    body: bytes | bytearray, content_type: str, query: Mapping[str, str], max_images: int
) -> tuple[list[Source], PredictOptions]:
    """Parse the images and options in a body: JSON, a multipart form, or a single image.

    Options in the body take precedence over options in the query of the URL.

    Raises:
        InvalidRequest: the body is invalid, has no image, or has more than `max_images` images.
        InvalidOption: an option is unknown or out of range.
    """
    kind, _ = parse_options_header(content_type)
    sources: list[Source]
    if kind == b"application/json":
        sources, given = _from_json(body)
    elif kind == b"multipart/form-data":
        sources, given = _from_form(body, content_type, max_images)
    else:
        sources, given = [body], {}
    if len(sources) > max_images:
        raise InvalidRequest(
            f"the request has {len(sources)} images, but at most {max_images} are allowed: split "
            "the request"
        )
    return sources, parse_options({**query, **given})


async def parsed_body(
    body: bytes | bytearray,
    content_type: str,
    query: Mapping[str, str],
    max_images: int,
    json: JsonThread,
) -> tuple[list[Source], PredictOptions]:
    """Run `parse_body` in a thread, so that it does not block other requests."""
    work = partial(parse_body, body, content_type, query, max_images)
    is_json = parse_options_header(content_type)[0] == b"application/json"
    if is_json and not looks_encoded(bytes(body[:8])):
        return await json.run(body, work)
    return await run_in_threadpool(work)


def parse_texts(body: bytes, most: int = MAX_WEIGHT) -> tuple[list[str], PredictOptions]:
    """Parse the texts and options of a JSON body. Raise the same errors as `parse_body`."""
    given = json_object(body, most)
    sent = given.pop("text", None)
    texts = [sent] if isinstance(sent, str) else sent
    if not isinstance(texts, list) or not all(isinstance(each, str) for each in texts):
        raise InvalidRequest('the body must be {"text": "a cat"} or {"text": ["a cat", "a dog"]}')
    if other := sorted(given.keys() - {"normalize", "vector", *FORMER}):
        raise InvalidOption(
            f"unknown option '{other[0][:60]}': the options for texts are normalize and vector"
        )
    return texts, parse_options(given)


def json_object(body: bytes, most: int = MAX_WEIGHT) -> dict[str, Any]:
    """Parse a body that must be a JSON object. `most` limits its weight, see `check_weight`.

    Raises:
        InvalidRequest: the body is not a JSON object.
        BodyTooLarge: the weight of the body exceeds `most`.
    """
    if not body:
        raise InvalidRequest("the body is empty: send a JSON object")
    given = _json(body, most)
    if not isinstance(given, dict):
        raise InvalidRequest("the body must be a JSON object")
    return given


def _json(body: bytes | bytearray, most: int = MAX_WEIGHT) -> Any:
    try:
        return parse_json(body, most)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"the body is not JSON: {error}") from None


def _from_json(body: bytes | bytearray) -> tuple[list[Source], dict[str, Any]]:
    if looks_encoded(bytes(body[:8])):
        raise InvalidRequest(
            "the body is an image, but its Content-Type is JSON: send application/octet-stream"
        )
    given = _json(body)
    images = given.pop("images", None) if isinstance(given, dict) else None
    if images == []:
        raise InvalidRequest(f"images is empty, but must have at least one image: {_SHAPE}")
    if not isinstance(images, list):
        has = ""
        if given and isinstance(given, dict):
            has = f", but has {', '.join(map(repr, given))}"
        raise InvalidRequest(f'the body must be {{"images": [...]}}{has[:80]}: {_SHAPE}')
    return [_from_json_image(index, image) for index, image in enumerate(images)], given


def _from_json_image(index: int, image: object) -> Source:
    match image:
        case {"data": str(data), **rest} if rest in ({}, {"url": None}):
            return base64_image(data, "data")
        case {"url": str(url), **rest} if rest in ({}, {"data": None}):
            return Url(url)
        case _:
            raise InvalidRequest(f"images[{index}] has an unknown form: {_SHAPE}")


def _from_form(
    body: bytes | bytearray, content_type: str, max_images: int
) -> tuple[list[Source], dict[str, Any]]:
    images, values = read_form(body, content_type, max_images)
    return list(images), {name: ",".join(texts) for name, texts in values.items()}


def read_form(
    body: bytes | bytearray, content_type: str, max_images: int
) -> tuple[list[bytes], dict[str, list[str]]]:
    """Read a form like `read_parts`, and also raise InvalidRequest if the form has no file."""
    images, values = read_parts(body, content_type, max_images)
    if not images:
        raise InvalidRequest("the form has no file; send each image as a file part")
    return images, values


def read_parts(
    body: bytes | bytearray, content_type: str, max_images: int
) -> tuple[list[bytes], dict[str, list[str]]]:
    """Read the files and the fields of a multipart form.

    Raises:
        InvalidRequest: the body is not a form, is incomplete, or has too many files or fields.
    """
    kind, parameters = parse_options_header(content_type)
    if kind != b"multipart/form-data":
        raise InvalidRequest(
            "the body is not a multipart form: send multipart/form-data with the image as a file"
        )
    boundary = parameters.get(b"boundary")
    if not boundary:
        raise InvalidRequest(
            "the Content-Type has no boundary: let your HTTP library write the header of the form"
        )
    images: list[bytes] = []
    values: dict[str, list[str]] = {}
    ended: list[bool] = []

    def on_file(file: File) -> None:
        file.file_object.seek(0)
        images.append(file.file_object.read())
        if len(images) > max_images:
            raise InvalidRequest(
                f"the form has more than {counted(max_images, 'image')}, the limit: split it into "
                "several requests"
            )

    def on_field(field: Field) -> None:
        name = (field.field_name or b"").decode(errors="replace")
        value = (field.value or b"").decode(errors="replace")
        # A repeated field such as `classes=0` and `classes=5` becomes a list.
        values.setdefault(name, []).append(value)
        if sum(map(len, values.values())) > _MAX_FIELDS:
            raise InvalidRequest(f"the form has more than {_MAX_FIELDS} fields: send fewer")

    try:
        parser = FormParser(
            "multipart/form-data",
            on_field,
            on_file,
            on_end=lambda: ended.append(True),
            boundary=boundary,
            # The body is in memory already and within its size limit, so the parser need not write
            # a file.
            config={"MAX_MEMORY_FILE_SIZE": len(body) + 1},
        )
        # The parser accepts every object with the methods of bytes. A conversion to bytes would
        # copy the body, and a large form would take twice the memory.
        parser.write(cast("bytes", body))
        parser.finalize()
    except FormParserError as error:
        raise InvalidRequest(f"the form cannot be read: {error}") from None
    if not ended:
        raise InvalidRequest("the form is incomplete: its last boundary is missing")
    return images, values
