"""The routes that serve the page and its files."""

from __future__ import annotations

import gzip
import hashlib
import re
from functools import partial
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from fovea_preprocess.errors import NotFound
from fovea_server.http.quality import weights

_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".ts": "text/plain"}
# Examples: one is drawn, the others are scenes of the demo.
_IMAGES = {".svg": "image/svg+xml", ".jpg": "image/jpeg"}

# Comments are for readers of the source, and would be a sixth of what is sent. The client,
# fovea.js, keeps them: programmers read it.
_COMMENT = re.compile(rb"^[ \t]*(?://.*|/\*[\s\S]*?\*/)\n", re.MULTILINE)

# Nothing is loaded from other hosts, and no script or style stands in the page itself.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' blob: data:; media-src 'self' blob:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def page_routes() -> list[Route]:
    """Make a route for the page at `/`, and for each of its files under `/page/`."""
    folder = Path(__file__).parent
    paths = [*folder.iterdir(), *(folder.parents[1] / "demo").glob("*.jpg")]
    files = {path.name: _File(path) for path in paths if path.suffix in _TYPES | _IMAGES}
    index = files.pop("index.html")
    return [
        Route("/", partial(_page, index), include_in_schema=False),
        *(
            Route(f"/page/{name}", file.answer, include_in_schema=False)
            for name, file in files.items()
        ),
    ]


async def _page(index: _File, request: Request) -> Response:
    # A program that asks for `*/*` has come to the wrong address: it is told so in JSON.
    if not _takes(request, "accept", "text/html"):
        raise NotFound("this address has a page for browsers; see /docs for the routes")
    return await index.answer(request)


def _takes(request: Request, header: str, entry: str) -> bool:
    return dict(weights(request.headers.get(header, ""))).get(entry, 0.0) > 0


class _File:
    """A file, read and compressed once."""

    def __init__(self, path: Path) -> None:
        self._type = (_TYPES | _IMAGES)[path.suffix]
        text = path.suffix in (".js", ".css") and path.name != "fovea.js"
        self._content = _COMMENT.sub(b"", path.read_bytes()) if text else path.read_bytes()
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
