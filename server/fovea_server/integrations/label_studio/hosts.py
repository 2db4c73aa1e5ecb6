"""Finds the images of tasks of Label Studio."""

from __future__ import annotations

import base64
from collections import OrderedDict
from dataclasses import dataclass
from urllib.parse import quote, urljoin, urlsplit

from fovea_preprocess.errors import InvalidImage, InvalidOption
from fovea_server.http.base64_text import base64_image
from fovea_server.http.v1.body import Source, Url
from fovea_server.settings import Settings

_MAX_PROJECTS = 1000
_CLOUDS = ("s3", "s3s", "gs", "azure-blob")


@dataclass(frozen=True, slots=True)
class Host:
    """A Label Studio server: its URL, and the access token of a user."""

    url: str
    token: str

    @property
    def authorization(self) -> str | None:
        """Return the Authorization header for files on this server, or None without a token."""
        if not self.token:
            return None
        # A token with three parts is a JSON Web Token. Newer servers use these instead of their
        # older tokens.
        return f"{'Bearer' if self.token.count('.') == 2 else 'Token'} {self.token}"


class Hosts:
    """The Label Studio server of each project.

    The operator can name one server for all projects. Otherwise it is the server that called
    `/setup`.
    """

    def __init__(self, settings: Settings) -> None:
        self._given: Host | None = None
        if settings.label_studio_url is not None:
            self._given = Host(
                check_url(settings.label_studio_url), settings.label_studio_token or ""
            )
        self._reported: OrderedDict[str, Host] = OrderedDict()

    @property
    def is_per_project(self) -> bool:
        """Return whether each project has its own server.

        This is the case if the operator has not named a server.
        """
        return self._given is None

    def remember(self, project: str, url: str, token: str) -> None:
        """Store the server of a project. If there are too many projects, remove the oldest."""
        self._reported.pop(project, None)
        self._reported[project] = Host(check_url(url), token)
        if len(self._reported) > _MAX_PROJECTS:
            self._reported.popitem(last=False)

    def source(self, project: str, task_id: object, address: str) -> Source:
        """Return the image at a URL of a task. If it cannot be found, return an error."""
        host = self._given or self._reported.get(project)
        try:
            scheme = urlsplit(address).scheme.lower()
        except ValueError:
            return _invalid(address)
        if scheme == "data":
            return _inline(address)
        if scheme in _CLOUDS and host is not None:
            # Let Label Studio redirect to a signed URL, because only Label Studio has the keys of
            # the cloud storage.
            coded = quote(base64.b64encode(address.encode()).decode("ascii"))
            address = f"/tasks/{quote(str(task_id), safe='')}/presign/?fileuri={coded}"
        elif scheme in ("http", "https"):
            return _url(address, host)
        if host is None:
            return InvalidImage(
                f"the image '{address[:60]}' is on an unknown Label Studio server: open the "
                "project's Model page in Label Studio to connect it again, or start the server "
                "with --label-studio-url and --label-studio-token"
            )
        try:
            joined = urljoin(f"{host.url.rstrip('/')}/", address.lstrip("/"))
        except ValueError:
            return _invalid(address)
        return _url(joined, host)


def _url(address: str, host: Host | None) -> Source:
    """Return an image to fetch. The token is sent only to the Label Studio server itself."""
    try:
        own = host is not None and _origin(host.url) == _origin(address)
    except ValueError:
        return _invalid(address)
    return Url(address, host.authorization if host is not None and own else None)


def _invalid(address: str) -> InvalidImage:
    return InvalidImage(f"'{address[:60]}' is not a URL")


def _origin(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme.lower(), parts.netloc.lower()


def check_url(url: str) -> str:
    """Return the URL of a Label Studio server. Raise InvalidOption if it is invalid."""
    try:
        scheme, host = _origin(url)
    except ValueError:
        scheme, host = "", ""
    if scheme not in ("http", "https") or not host:
        raise InvalidOption(
            f"the URL of the Label Studio server is '{url[:60]}', but must be a URL such as "
            "http://HOST:8080"
        )
    return url


def _inline(address: str) -> Source:
    head, _, text = address.partition(",")
    if not head.endswith(";base64"):
        return InvalidImage("a data: URL of an image must contain base64")
    return base64_image(text, "the data: URL of the image")
