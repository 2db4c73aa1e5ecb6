"""The page at `/`."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import re
import zipfile
from collections.abc import Iterator
from functools import cache, partial
from importlib import resources
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

from fastapi import APIRouter
from packaging.requirements import Requirement
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from fovea_server.feature import Feature
from fovea_server.http.messages import weights
from fovea_server.http.v1.models import identity

_DISTRIBUTION, _BUNDLING = "fovea-client", "fovea-serve"
_SUMMARY = "Typed client of a Fovea server: image in, boxes out. Needs no runtime."
_REQUIRED = ("httpx", "numpy", "sniffio")
_LICENCE = "licenses/LICENSE"
_WHEEL = "Wheel-Version: 1.0\nGenerator: fovea\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
# The earliest that a ZIP file can have: equal files make equal wheels.
_DATE = (1980, 1, 1, 0, 0, 0)

_TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".ts": "text/plain",
    ".svg": "image/svg+xml",
}
# The page says how to install the client, whose wheel has the version in its name.
_WHEEL_NAME = "{{wheel}}"
# Comments on lines of their own, and indentation, are for readers of the code. People read the
# client, so it stays as it is.
_UNSENT = re.compile(r"^\s*(?://.*|/\*(?:(?!\*/)[\s\S])*\*/)\s*\n|^ +", re.MULTILINE)
_STRIPPED, _READ = (".js", ".css"), "fovea.js"

# Nothing is loaded from other hosts, and no script or style stands in the page itself.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' blob: data:; media-src 'self' blob:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def wheel_name() -> str:
    """Return the file's name, which pip reads the version from."""
    return f"fovea_client-{_source().version}-py3-none-any.whl"


@cache
def wheel() -> bytes:
    """Make the wheel (PyPA, "Binary distribution format")."""
    info = f"fovea_client-{_source().version}.dist-info"
    record = ""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in [*_modules(), *((f"{info}/{name}", data) for name, data in _about())]:
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record += f"{name},sha256={digest},{len(data)}\n"
            _write(archive, name, data)
        _write(archive, f"{info}/RECORD", f"{record}{info}/RECORD,,\n".encode())
    return file.getvalue()


def _write(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    entry = zipfile.ZipInfo(name, _DATE)
    entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o100644 << 16
    archive.writestr(entry, data)


def _modules() -> Iterator[tuple[str, bytes]]:
    package = find_spec("fovea_client")
    assert package is not None
    assert package.origin is not None
    for path in sorted(Path(package.origin).parent.iterdir()):
        if path.suffix in (".py", ".typed"):
            yield f"fovea_client/{path.name}", path.read_bytes()


def _about() -> Iterator[tuple[str, bytes]]:
    yield "METADATA", _metadata().encode()
    yield "WHEEL", _WHEEL.encode()
    if licence := _source().read_text(_LICENCE):
        yield _LICENCE, licence.encode()


def _metadata() -> str:
    source = _source()
    required = [each for each in source.requires or () if Requirement(each).name in _REQUIRED]
    return "".join(
        f"{name}: {value}\n"
        for name, value in [
            ("Metadata-Version", "2.4"),
            ("Name", _DISTRIBUTION),
            ("Version", source.version),
            ("Summary", _SUMMARY),
            ("License-Expression", "Apache-2.0"),
            ("License-File", "LICENSE"),
            ("Requires-Python", source.metadata["Requires-Python"]),
            *(("Requires-Dist", each) for each in required),
        ]
    )


def _source() -> Distribution:
    """Return the distribution that has the client: its own, or the server's, which bundles it."""
    try:
        return distribution(_DISTRIBUTION)
    except PackageNotFoundError:
        return distribution(_BUNDLING)


def page_routes() -> list[BaseRoute]:
    """Make a route for the page at `/`, for each of its files under `/page/`, and the client."""
    folder, name = Path(__file__).parent, wheel_name()
    files = {
        path.name: _File(_text(path).replace(_WHEEL_NAME, name).encode(), _TYPES[path.suffix])
        for path in folder.iterdir()
        if path.suffix in _TYPES
    }
    for scene in (resources.files("fovea_server") / "demo").iterdir():
        if scene.name.endswith(".jpg"):
            files[scene.name] = _File(scene.read_bytes(), "image/jpeg")
    index = files.pop("index.html")
    return [
        Route("/", partial(_page, index), include_in_schema=False),
        Route(f"/page/{name}", _client, include_in_schema=False),
        *(
            Route(f"/page/{name}", file.answer, include_in_schema=False)
            for name, file in files.items()
        ),
    ]


def _text(path: Path) -> str:
    text = path.read_text("utf-8")
    return _UNSENT.sub("", text) if path.suffix in _STRIPPED and path.name != _READ else text


async def _page(index: _File, request: Request) -> Response:
    # Load balancers and curl ask for `*/*`.
    if not _takes(request, "accept", "text/html"):
        return await identity(request)
    return await index.answer(request)


async def _client(request: Request) -> Response:
    content = await run_in_threadpool(wheel)
    return Response(content, headers={"Cache-Control": "no-cache"}, media_type="application/zip")


def _takes(request: Request, header: str, entry: str) -> bool:
    return dict(weights(request.headers.get(header, ""))).get(entry, 0.0) > 0


class _File:
    """A file, compressed once."""

    def __init__(self, content: bytes, media_type: str) -> None:
        self._type, self._content = media_type, content
        self._packed = gzip.compress(self._content)
        self._headers = {
            "Cache-Control": "no-cache",
            "Content-Security-Policy": _POLICY,
            "ETag": f'W/"{hashlib.sha256(self._content).hexdigest()[:16]}"',
            "Referrer-Policy": "no-referrer",
            "Vary": "Accept, Accept-Encoding",
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
        }

    async def answer(self, request: Request) -> Response:
        if request.headers.get("if-none-match") == self._headers["ETag"]:
            return Response(status_code=304, headers=self._headers)
        if not _takes(request, "accept-encoding", "gzip"):
            return Response(self._content, headers=self._headers, media_type=self._type)
        headers = {**self._headers, "Content-Encoding": "gzip"}
        return Response(self._packed, headers=headers, media_type=self._type)


class Page(Feature):
    """Routes of the page, of its files, and of the client's wheel."""

    def router(self) -> APIRouter:
        """Make the routes."""
        return APIRouter(routes=page_routes())
