"""The server that is measured: its address, and what it says of a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

import httpx

from fovea_engines.session import Closing
from fovea_preprocess.errors import InvalidOption, NotFound, Unavailable
from fovea_server.bench.load import Address

# Name of a stage -> its key in the statistics of v2.
_STAGES = {
    "queue": "queue",
    "input": "compute_input",
    "infer": "compute_infer",
    "output": "compute_output",
}


@dataclass(frozen=True, slots=True)
class Counters:
    """The counts that a server has of a model; nanoseconds by stage, of all requests together."""

    requests: int
    rows: int
    executions: int
    ns: dict[str, int]


class Target(Closing):
    """A model of a server.

    Raises:
        InvalidOption: `url` is not an address.

    Attributes:
        model: its name.
        version: None for the newest.
        address: where the server listens.
        url: with its scheme, without a slash at the end.
    """

    def __init__(self, url: str, model: str, version: int | None) -> None:
        self.model = model
        self.version = version
        parts = urlsplit(url if "://" in url else f"http://{url}")
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
            raise InvalidOption(
                f"--url {url!r} is not the address of a server, e.g. http://127.0.0.1:8000"
            )
        https = parts.scheme == "https"
        self.address = Address(parts.hostname, port or (443 if https else 80), https)
        self.url = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
        self._http = httpx.Client(base_url=self.url, timeout=30.0)
        self._path = f"/v2/models/{quote(model, safe='')}"
        if version is not None:
            self._path += f"/versions/{version}"

    def metadata(self) -> Mapping[str, Any]:
        """Return what v2 says of the model: its inputs and outputs.

        Raises:
            Unavailable: the server does not answer, or refuses.
            NotFound: it has no such model.
        """
        try:
            answer = self._http.get(self._path)
        except httpx.TransportError as error:
            raise Unavailable(f"{self.url} does not answer ({error}): is a server there?") from None
        if answer.status_code == httpx.codes.OK:
            document: Mapping[str, Any] = answer.json()
            return document
        unknown = answer.status_code in (httpx.codes.BAD_REQUEST, httpx.codes.NOT_FOUND)
        kind = NotFound if unknown else Unavailable
        raise kind(f"{self.url} answers {answer.status_code}: {answer.text[:200]}")

    def engine(self) -> str | None:
        """Describe backend and precision of the model; None where the server keeps them secret."""
        config = self._asked("/config")
        if config is None or not config.get("backend"):
            return None
        precision = config.get("parameters", {}).get("precision", {}).get("string_value", "")
        return f"{config['backend']} {precision}".strip()

    def counters(self) -> Counters | None:
        """Read the statistics of the model; None where the server keeps them secret."""
        document = self._asked("/stats")
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

    def _asked(self, what: str) -> Mapping[str, Any] | None:
        try:
            answer = self._http.get(self._path + what)
        except httpx.TransportError:
            return None
        return answer.json() if answer.status_code == httpx.codes.OK else None

    def close(self) -> None:
        """Close the connection. Calling it again does nothing."""
        self._http.close()
