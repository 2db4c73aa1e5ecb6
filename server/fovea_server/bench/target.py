"""The server and the model to measure: their address, and the server's data about the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx

from fovea_client import server_address, with_key
from fovea_engines.session import Closing
from fovea_preprocess.errors import InvalidOption, NotFound, Unavailable
from fovea_server.bench.load import Endpoint

# Name of each stage -> its key in the model statistics of the v2 protocol.
_STAGES = {
    "queue": "queue",
    "input": "compute_input",
    "infer": "compute_infer",
    "output": "compute_output",
}


@dataclass(frozen=True, slots=True)
class Counters:
    """The server's counters for a model, from its statistics.

    `ns` has the total nanoseconds of all requests in each stage.
    """

    requests: int
    rows: int
    executions: int
    ns: dict[str, int]


class Target(Closing):
    """A model of a server.

    Raises:
        InvalidOption: `url` is invalid.

    Attributes:
        model: name of the model.
        version: number of the version; None for the current version.
        address: address of the server.
        url: URL of the server, without a slash at the end.
        path: path of the model in URLs, without the prefix /v1 or /v2.
    """

    def __init__(self, url: str, model: str, version: int | None) -> None:
        self.model = model
        self.version = version
        try:
            self.url = server_address(url)
        except ValueError as error:
            raise InvalidOption(str(error)) from None
        parts = httpx.URL(self.url)
        https = parts.scheme == "https"
        self.address = Endpoint(parts.host, parts.port or (443 if https else 80), https)
        self._http = httpx.Client(base_url=self.url, headers=with_key({}), timeout=30.0)
        self.path = f"/models/{quote(model, safe='')}"
        if version is not None:
            self.path += f"/versions/{version}"

    def metadata(self) -> Mapping[str, Any]:
        """Return the metadata of the model from v2: its inputs and outputs.

        Raises:
            Unavailable: the server does not respond, or rejects the request.
            NotFound: the server has no such model.
        """
        try:
            answer = self._http.get(f"/v2{self.path}")
        except httpx.TransportError as error:
            raise Unavailable(
                f"{self.url} does not respond ({error}): check the URL, and start the server if "
                "it is not running"
            ) from None
        if answer.status_code == httpx.codes.OK:
            document: Mapping[str, Any] = answer.json()
            return document
        unknown = answer.status_code in (httpx.codes.BAD_REQUEST, httpx.codes.NOT_FOUND)
        kind = NotFound if unknown else Unavailable
        raise kind(f"{self.url} returned status {answer.status_code}: {answer.text[:200]}")

    def engine(self) -> str | None:
        """Return the backend and precision of the version; None if /v1 does not report them."""
        document = self._get_json(f"/v1{self.path}")
        if document is None or not document.get("backend"):
            return None
        return f"{document['backend']} {document['precision']}"

    def labels(self) -> Sequence[str] | None:
        """Return the class names of the model; None if /v1 does not report them."""
        document = self._get_json(f"/v1{self.path}") or {}
        return document.get("labels") or None

    def counters(self) -> Counters | None:
        """Return the statistics of the model; None if they cannot be read."""
        document = self._get_json(f"/v2{self.path}/stats")
        if document is None:
            return None
        versions = document["model_stats"]
        stats = [version["inference_stats"] for version in versions]
        return Counters(
            requests=sum(int(each["success"]["count"]) for each in stats),
            rows=sum(int(each["inference_count"]) for each in versions),
            executions=sum(int(each["execution_count"]) for each in versions),
            ns={
                stage: sum(int(each[key]["ns"]) for each in stats) for stage, key in _STAGES.items()
            },
        )

    def _get_json(self, path: str) -> Mapping[str, Any] | None:
        try:
            answer = self._http.get(path)
        except httpx.TransportError:
            return None
        return answer.json() if answer.status_code == httpx.codes.OK else None

    def close(self) -> None:
        """Close the connection; further calls do nothing."""
        self._http.close()
