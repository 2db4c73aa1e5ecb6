"""A client for one model of a running server, and options of the commands that use it."""

from __future__ import annotations

import re
from math import inf
from typing import Annotated, Any
from urllib.parse import quote

import httpx
import typer
from pydantic import ValidationError

from fovea_client import server_address, with_key
from fovea_engines.session import Closing
from fovea_preprocess.errors import FoveaError, InvalidOption, InvalidRequest, NotFound, Unavailable
from fovea_server.models.config.config_check import Document

_SHARE = re.compile(r"\+?(?P<number>\d{1,4}(?:\.\d{1,6})?)(?P<percent>%?)")

NameArgument = Annotated[
    str, typer.Argument(metavar="MODEL", help="Name of the model on the server.")
]
ServerOption = Annotated[
    str,
    typer.Option(
        "--url",
        metavar="URL",
        envvar="FOVEA_URL",
        help=(
            "URL of the running server. If the server requires an API key, set it in the variable "
            "FOVEA_API_KEY."
        ),
    ),
]
SERVER = "http://127.0.0.1:8000"


class ServedModelClient(Closing):
    """Sends requests about one model to a server, with the key in FOVEA_API_KEY if it is set.

    Raises:
        InvalidOption: `url` is invalid.
    """

    def __init__(self, url: str, name: str, timeout_s: float = 30.0) -> None:
        try:
            self._url = server_address(url)
        except ValueError as error:
            raise InvalidOption(str(error)) from None
        self._http = httpx.Client(base_url=self._url, headers=with_key({}), timeout=timeout_s)
        self._path = f"/v1/models/{quote(name, safe='')}/"

    def ask(
        self, kind: type[Document], path: str, method: str = "GET", body: Any = None
    ) -> Document:
        """Request a JSON document at a path below the model's path.

        Raises:
            FoveaError: one of the errors of `fetch`.
        """
        content = self.fetch(path, method, body)
        try:
            return kind.model_validate_json(content)
        except ValidationError:
            raise Unavailable(
                f"{self._url} returned an unexpected response, perhaps from another version of "
                f"Fovea: {content[:200]!r}"
            ) from None

    def fetch(self, path: str, method: str = "GET", body: Any = None) -> bytes:
        """Request a path below the model's path, and return the body of the response.

        Raises:
            NotFound, InvalidOption, InvalidRequest: the server returned this error.
            Unavailable: the server does not respond, cannot respond now, or is not a Fovea server.
        """
        try:
            answer = self._http.request(method, self._path + path, json=body)
        except httpx.TransportError as error:
            raise Unavailable(
                f"{self._url} does not respond ({error}): check the URL, and start the server if "
                "it is not running"
            ) from None
        status = answer.status_code
        if status == httpx.codes.OK:
            return answer.content
        try:
            message = str(answer.json()["error"]["message"])
        except (ValueError, LookupError, TypeError):
            raise Unavailable(
                f"{self._url} returned status {status}, but not in Fovea's format: check that the "
                "URL is a Fovea server"
            ) from None
        kinds: dict[int, type[FoveaError]] = {404: NotFound, 422: InvalidOption}
        usual = InvalidRequest if status < httpx.codes.INTERNAL_SERVER_ERROR else Unavailable
        raise kinds.get(status, usual)(message)

    def close(self) -> None:
        """Close the connections; further calls do nothing."""
        self._http.close()


def parse_share(flag: str, text: str | None, least: float = 0, most: float = inf) -> float | None:
    """Parse a text such as 5%, +10% or 0.05 to a fraction; None stays None.

    Raises:
        InvalidOption: the text has another form, or the fraction is not from `least` to `most`.
    """
    if text is None:
        return None
    if (found := _SHARE.fullmatch(text)) is None:
        raise InvalidOption(f"{flag} is {text!r}, but must be a percentage, such as 5%")
    share = round(float(found["number"]) / (100 if found["percent"] else 1), 9)
    if not least <= share <= most:
        raise InvalidOption(
            f"{flag} is {text}, but must be from {100 * least:g}% to {100 * most:g}%"
        )
    return share
