"""Reads a repository from the index pages of a web server. The server may be broken or hostile."""

from __future__ import annotations

import netrc
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from html.parser import HTMLParser
from http import HTTPStatus
from typing import Protocol, TypeVar
from urllib.parse import urljoin

import httpx

from fovea_preprocess.errors import Unavailable
from fovea_preprocess.text import size_text

T = TypeVar("T")
Listed = Mapping[str, object]
"""A file in the listing of a store. The keys depend on the kind of store."""

# Limits for index pages: links may form circles, and pages may be endless.
_DEEPEST = 6
_MAX_PAGES = 2_000
_MAX_FILES = 20_000
_MAX_OF_A_PAGE = 4 << 20
_LONGEST_LINK = 2_000
_AT_ONCE = 16
# Timeout in seconds for all requests of one step together. It is short, because `Store.models`
# waits at most 30 s.
_PATIENCE_S = 8.0
_LATE = f"it did not come within {_PATIENCE_S:g} s"
_TIMEOUT = httpx.Timeout(30, connect=10)
# Request content without compression, so that sizes and tags describe the stored bytes.
_HEADERS = {"Accept-Encoding": "identity"}
_NO_HEAD = (HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_IMPLEMENTED)


class Readable(Protocol):
    """An open file of a store."""

    def read(self, size: int, /) -> bytes:
        """Read up to `size` bytes. At the end of the file, return b""."""


class WebServer:
    """The files below an http:// or https:// URL.

    The environment supplies proxies, and ~/.netrc supplies passwords.
    """

    def __init__(self) -> None:
        try:
            self._auth: httpx.Auth | None = httpx.NetRCAuth()
        except (OSError, netrc.NetrcParseError):
            self._auth = None

    def _client(self) -> httpx.Client:
        # Each operation has its own client, so that no connection stays open between two polls.
        return httpx.Client(
            auth=self._auth, timeout=_TIMEOUT, headers=_HEADERS, follow_redirects=True
        )

    def find(self, root: str) -> Mapping[str, Listed]:
        """List all files below a URL.

        Index pages and files are requested concurrently.

        Returns:
            Dict from the URL of each file to its size and response headers. If the file cannot be
            read, its value has the reason under the key "problem".

        Raises:
            FileNotFoundError: the index page of the root is missing.
            PermissionError: access to the index page of the root is forbidden.
            httpx.HTTPError: the index page of the root cannot be read.
            Unavailable: there are more pages or files than a repository has.
        """
        pool = ThreadPoolExecutor(_AT_ONCE)
        try:
            with self._client() as client:
                return _Listing(client, pool).of(f"{root}/")
        finally:
            # Do not wait for late requests. They end when the client closes their connections.
            pool.shutdown(wait=False, cancel_futures=True)

    @contextmanager
    def open(self, name: str, *_: object, **__: object) -> Iterator[Readable]:
        """Open a file, and read it with one request. Raise the errors of `find`."""
        with self._client() as client, client.stream("GET", name) as answer:
            _check(answer)
            yield _Stream(answer.iter_raw())


class _Listing:
    """One listing of all files on a web server."""

    def __init__(self, client: httpx.Client, pool: ThreadPoolExecutor) -> None:
        self._client = client
        self._pool = pool

    def of(self, root: str) -> dict[str, Listed]:
        files = self._follow_links(root)
        links = [name for name, listed in files.items() if not listed]
        late: Listed = {"problem": _LATE}
        return files | self._each(self._fetch_headers, links, late)

    def _each(self, ask: Callable[[str], T], names: Sequence[str], late: T) -> dict[str, T]:
        """Call `ask` for each name concurrently, and return the results.

        The result of a call that is too late is `late`.
        """
        futures = {name: self._pool.submit(ask, name) for name in names}
        wait(futures.values(), _PATIENCE_S)
        return {name: each.result() if each.done() else late for name, each in futures.items()}

    def _follow_links(self, root: str) -> dict[str, Listed]:
        """Follow the index pages.

        Returns:
            Dict with an empty description for each file, and with the problem of each broken page.
        """
        files: dict[str, Listed] = {}
        pages, seen = [root], {root}
        first: list[str] = self._again(self._links, root)
        for depth in range(_DEEPEST):
            answers: dict[str, list[str] | str] = {root: first}
            if depth:
                answers = self._each(self._links_or_problem, pages, _LATE)
            pages = []
            for page, links in answers.items():
                if isinstance(links, str):
                    files[page] = {"problem": links}
                    continue
                new = [link for link in links if link not in seen]
                seen.update(new)
                pages += (link for link in new if link.endswith("/"))
                files |= {link: {} for link in new if not link.endswith("/")}
            if len(seen) > _MAX_FILES or len(pages) > _MAX_PAGES:
                raise Unavailable(
                    f"{root} exceeds the limit of {_MAX_FILES} files or {_MAX_PAGES} folders: "
                    "give the folder that holds the models"
                )
        return files

    def _links_or_problem(self, page: str) -> list[str] | str:
        try:
            return self._again(self._links, page)
        except FileNotFoundError:
            return []  # a link to a page that does not exist
        except (OSError, ValueError, httpx.HTTPError, httpx.InvalidURL, Unavailable) as error:
            return _text(error)

    def _again(self, ask: Callable[[str], T], name: str) -> T:
        """Call `ask`. If the server has closed a connection that seemed open, call it again."""
        try:
            return ask(name)
        except httpx.RemoteProtocolError:
            return ask(name)

    def _links(self, page: str) -> list[str]:
        """Return the links of an index page that lead to files or directories below the page."""
        content = bytearray()
        with self._client.stream("GET", page) as answer:
            _check(answer)
            if "html" not in answer.headers.get("Content-Type", "html"):
                return []
            for piece in answer.iter_raw():
                content += piece
                if len(content) > _MAX_OF_A_PAGE:
                    raise Unavailable(
                        f"the index page exceeds {size_text(_MAX_OF_A_PAGE)}, so it is not the "
                        "list of a folder"
                    )
        parser = _Links()
        try:
            parser.feed(content.decode("utf-8", "replace"))
        except AssertionError as error:  # raised for a malformed declaration
            raise ValueError(f"the index page is not HTML: {error}") from error
        links = filter(None, (_join_url(page, link) for link in parser.links))
        # Drop links with "?" or "#", which change the order of the page, and links that lead out of
        # the directory.
        return [link for link in links if link.startswith(page) and not set(link) & {"?", "#"}]

    def _fetch_headers(self, name: str) -> Listed:
        try:
            headers = self._again(self._headers, name)
        except (OSError, httpx.HTTPError, httpx.InvalidURL) as error:
            return {"problem": _text(error)}
        size = headers.get("Content-Length", "")
        return {**headers, "size": int(size) if size.isdecimal() else None}

    def _headers(self, name: str) -> httpx.Headers:
        answer = self._client.head(name)
        if answer.status_code in _NO_HEAD or "Content-Length" not in answer.headers:
            with self._client.stream("GET", name) as answer:
                pass
        _check(answer)
        return answer.headers


class _Stream:
    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces

    def read(self, _: int, /) -> bytes:
        return next(self._pieces, b"")


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.links += (value for name, value in attrs if name == "href" and value)


def _join_url(page: str, link: str) -> str:
    """Return the URL of a link, or "" if the link is invalid."""
    try:
        return urljoin(page, link) if link.isprintable() and len(link) < _LONGEST_LINK else ""
    except ValueError:
        return ""


def _check(answer: httpx.Response) -> None:
    status = answer.status_code
    if status in (HTTPStatus.NOT_FOUND, HTTPStatus.GONE):
        raise FileNotFoundError(f"{status} {answer.reason_phrase}")
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        raise PermissionError(f"{status} {answer.reason_phrase}")
    answer.raise_for_status()


def _text(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
