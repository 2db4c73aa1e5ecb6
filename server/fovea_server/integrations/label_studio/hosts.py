"""Finds the images of Label Studio's tasks."""

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
    """A Label Studio: its address, and the token of a user there."""

    url: str
    token: str

    @property
    def authorization(self) -> str | None:
        """The header that its files ask for; None without a token."""
        if not self.token:
            return None
        # Three parts: a JSON Web Token, which newer servers have in place of their own.
        return f"{'Bearer' if self.token.count('.') == 2 else 'Token'} {self.token}"


class Hosts:
    """The Label Studio of each project: the operator's, or the one that it sent to `/setup`."""

    def __init__(self, settings: Settings) -> None:
        self._given: Host | None = None
        if settings.label_studio_url is not None:
            self._given = Host(
                check_url(settings.label_studio_url), settings.label_studio_token or ""
            )
        self._reported: OrderedDict[str, Host] = OrderedDict()

    @property
    def is_per_project(self) -> bool:
        """True if the operator named none, so that each project names its own in `/setup`."""
        return self._given is None

    def remember(self, project: str, url: str, token: str) -> None:
        """Remember the host of a project; the least recent is forgotten where they are many."""
        self._reported.pop(project, None)
        self._reported[project] = Host(check_url(url), token)
        if len(self._reported) > _MAX_PROJECTS:
            self._reported.popitem(last=False)

    def source(self, project: str, task_id: object, address: str) -> Source:
        """Return the image at an address of a task; an error stands for one that cannot be."""
        host = self._given or self._reported.get(project)
        try:
            scheme = urlsplit(address).scheme.lower()
        except ValueError:
            return InvalidImage(f"'{address[:60]}' is no address")
        if scheme == "data":
            return _inline(address)
        if scheme in _CLOUDS and host is not None:
            # Label Studio has the keys of the cloud, and redirects to a signed address.
            coded = quote(base64.b64encode(address.encode()).decode("ascii"))
            address = f"/tasks/{quote(str(task_id), safe='')}/presign/?fileuri={coded}"
        elif scheme in ("http", "https"):
            return _url(address, host)
        if host is None:
            return InvalidImage(
                f"'{address[:60]}' is on a Label Studio that this server does not know: open the "
                "project's Model page there, which connects again, or start the server with "
                "--label-studio-url and --label-studio-token"
            )
        return _url(urljoin(f"{host.url.rstrip('/')}/", address.lstrip("/")), host)


def _url(address: str, host: Host | None) -> Source:
    """Return an image to fetch; only the Label Studio itself gets the token."""
    try:
        own = host is not None and _origin(host.url) == _origin(address)
    except ValueError:
        return InvalidImage(f"'{address[:60]}' is no address")
    return Url(address, host.authorization if host is not None and own else None)


def _origin(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme.lower(), parts.netloc.lower()


def check_url(url: str) -> str:
    """Return the address of a Label Studio; InvalidOption if it is none."""
    try:
        scheme, host = _origin(url)
    except ValueError:
        scheme, host = "", ""
    if scheme not in ("http", "https") or not host:
        raise InvalidOption(
            f"'{url[:60]}' is not the URL of a Label Studio server, such as http://HOST:8080"
        )
    return url


def _inline(address: str) -> Source:
    head, _, text = address.partition(",")
    if not head.endswith(";base64"):
        return InvalidImage("a data: address of an image must be base64")
    return base64_image(text, "the data: address of the image")
