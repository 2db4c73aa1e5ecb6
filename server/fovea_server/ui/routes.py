"""The routes that serve the page, its files, and the Python client."""

from __future__ import annotations

import gzip
import hashlib
import re
from functools import partial
from importlib import resources
from pathlib import Path

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from fovea_server.http.messages import weights
from fovea_server.http.v1.identity import identity
from fovea_server.ui.client_wheel import wheel, wheel_name

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
