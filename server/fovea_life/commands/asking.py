"""Asks a running server about one of its models."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import httpx

from fovea_client import server_address, with_key
from fovea_engines.session import Closing
from fovea_preprocess.errors import FoveaError, InvalidOption, InvalidRequest, NotFound, Unavailable


class AskedModel(Closing):
    """A model behind the address of a server; FOVEA_API_KEY may have its key.

    Raises:
        InvalidOption: `url` is no address.
    """

    def __init__(self, url: str, name: str, timeout_s: float = 30.0) -> None:
        try:
            self._url = server_address(url)
        except ValueError as error:
            raise InvalidOption(str(error)) from None
        self._http = httpx.Client(base_url=self._url, headers=with_key({}), timeout=timeout_s)
        self._path = f"/v1/models/{quote(name, safe='')}/"

    def ask(self, path: str, method: str = "GET", body: Any = None) -> httpx.Response:
        """Ask for a path below the model's.

        Raises:
            NotFound, InvalidOption, InvalidRequest: the server says so.
            Unavailable: it does not answer, cannot now, or is none of Fovea.
        """
        try:
            answer = self._http.request(method, self._path + path, json=body)
        except httpx.TransportError as error:
            raise Unavailable(
                f"{self._url} does not answer ({error}): is a server there?"
            ) from None
        status = answer.status_code
        if status == httpx.codes.OK:
            return answer
        try:
            said = str(answer.json()["error"]["message"])
        except (ValueError, LookupError, TypeError):
            raise Unavailable(f"{self._url} answers {status}: is it of Fovea?") from None
        kinds: dict[int, type[FoveaError]] = {404: NotFound, 422: InvalidOption}
        usual = InvalidRequest if status < httpx.codes.INTERNAL_SERVER_ERROR else Unavailable
        raise kinds.get(status, usual)(said)

    def close(self) -> None:
        """Close the connections. Calling it again does nothing."""
        self._http.close()
